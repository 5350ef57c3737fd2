"""Tests of the ratios between contenders."""

from scripts.benchmarks.train_steps import relative_to_fourfold


def test_compiled_contenders_are_relative_to_uncompiled_fourfold() -> None:
    seconds = {"fourfold": [1.0], "fourfold compiled": [0.5], "timm": [2.0], "timm compiled": [3.0]}
    assert relative_to_fourfold(seconds) == seconds
    assert relative_to_fourfold({"fourfold": [2.0], "timm": [3.0]})["timm"] == [1.5]
