"""Tests of the ratios, ranges and reference operations of the benchmarks."""

import pytest
import torch

from scripts.benchmarks import measurements
from scripts.benchmarks.measurements import (
    Spread,
    copying,
    feed_forward_product,
    measure_rounds,
    ratios,
)

CPU = torch.device("cpu")


def test_ratios_are_taken_round_by_round() -> None:
    seconds = {"base": [1.0, 2.0], "other": [2.0, 4.0]}
    assert ratios(seconds, "base") == {"base": [1.0, 1.0], "other": [2.0, 2.0]}


def test_spread_is_formatted_as_median_and_range() -> None:
    spread = Spread.of([3.0, 1.0, 2000.0])
    assert spread == Spread(3.0, 1.0, 2000.0)
    assert spread.text(1.0, 1) == "3.0 [1.0, 2,000.0]"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_feed_forward_product_counts_its_flops(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    product, flops = feed_forward_product(8, 3, 12, dtype, CPU)
    assert product().shape == (8, 12)
    assert flops == 2 * 8 * 3 * 12
    monkeypatch.setitem(measurements.PRODUCT_FLOPS, "cpu", flops + 1)
    assert feed_forward_product(8, 3, 12, dtype, CPU)[1] == 2 * flops


def test_each_round_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = measure_rounds("train: vit", {"fourfold": lambda: None}, 2, 1, CPU)
    assert len(seconds["fourfold"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": fourfold ")[0] for line in lines] == [
        "train: vit, round 1 of 2",
        "train: vit, round 2 of 2",
    ]


def test_copy_counts_bytes_read_and_written() -> None:
    copy, copied_bytes = copying(CPU)
    assert 2 * len(copy()) == copied_bytes
