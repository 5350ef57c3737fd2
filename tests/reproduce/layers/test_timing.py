"""Layers by the clock: their shapes, and crossovers by hand."""

import json
from pathlib import Path

import pytest
import torch

from fourfold.reproduce.layers.timing import LAYERS, SELF, crossover, measure_layers, time_rows
from fourfold.reproduce.load_tables import find_tables


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("length", [16, 128])
def test_a_layer_keeps_the_shape_and_learns(name: str, length: int) -> None:
    x = torch.randn(2, length, 8, requires_grad=True)
    y = LAYERS[name](8)(x)
    assert y.shape == x.shape
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_blocks_do_not_see_each_other() -> None:
    x = torch.randn(1, 128, 8, requires_grad=True)
    LAYERS["restricted"](8)(x)[0, 0].sum().backward()
    assert x.grad is not None
    assert x.grad[0, :64].abs().sum() > 0
    assert x.grad[0, 64:].abs().sum() == 0


@pytest.mark.parametrize("length", [100, 300])
def test_windowed_attention_sees_its_window_only(length: int) -> None:
    x = torch.randn(1, length, 8, requires_grad=True)
    LAYERS["windowed"](8)(x)[0, 50].sum().backward()
    assert x.grad is not None
    seen = x.grad[0].any(-1).nonzero().flatten().tolist()
    assert seen == list(range(50 - 31, 50 + 32))


def test_every_layer_is_timed_at_every_length() -> None:
    times = measure_layers(8, rounds=2, longest=32)
    assert [list(found) for found in times] == [["16", "32"]] * 2
    assert all(found[length].keys() == LAYERS.keys() for found in times for length in found)


def rounds(*ratios: list[float]) -> list[dict[str, dict[str, float]]]:
    """Self-attention's time at 16, 32, ... tokens, one a round; another layer's is 1."""
    return [
        {
            str(16 * 2**i): {SELF: ratio, "other": 1.0, "restricted": 1.0, "windowed": 1.0}
            for i, ratio in enumerate(found)
        }
        for found in zip(*ratios, strict=True)
    ]


def test_a_crossover_lies_between_two_lengths() -> None:
    found = crossover(rounds([0.25, 0.5], [0.5, 2.0], [2.0, 4.0]), "other")
    assert found == pytest.approx([32 * 2**0.5, 16 * 2**0.5])
    # The last time that it is faster counts.
    assert crossover(rounds([2.0], [0.5], [2.0]), "other") == pytest.approx([32 * 2**0.5])
    assert crossover([], "other") == []


def test_where_there_is_no_crossover_is_the_median_s_to_say() -> None:
    assert crossover(rounds([2.0], [4.0]), "other") == ["under 16"]
    assert crossover(rounds([2.0, 2.0, 0.9], [4.0, 4.0, 4.0]), "other") == ["under 16"]
    assert crossover(rounds([0.5, 0.5, 0.5], [2.0, 0.5, 0.5]), "other") == ["over 32"]
    # A round without one has no say where most have one.
    found = crossover(rounds([0.5, 0.5, 2.0], [2.0, 2.0, 2.0]), "other")
    assert found == pytest.approx([16 * 2**0.5] * 2)


def test_blocks_are_slower_or_faster_only_where_there_is_more_than_one() -> None:
    noise = [[1.25], [1.25], [0.8]]
    assert crossover(rounds(*noise, [1.25]), "restricted") == [64.0]
    assert crossover(rounds(*noise, [0.5]), "restricted") == ["over 128"]
    assert crossover(rounds(*noise[:2], [1.25]), "windowed") == [32.0]


def test_recorded_rounds_without_a_new_layer_are_not_run(tmp_path: Path) -> None:
    (table,) = find_tables(["vaswani2017/crossover"])
    file = tmp_path / table.name / "measured" / "provenance.json"
    file.parent.mkdir(parents=True)
    times = {"16": {SELF: 1.0, "lstm": 2.0}, "32": {SELF: 4.0, "lstm": 2.0}}
    file.write_text(json.dumps({"runs": [{"row": "d64", "seconds_by_length": times}]}))
    cells, runs = time_rows(table, [], 1, tmp_path)
    found = {cell.column: cell.verdict for cell in cells if cell.row == "d64"}
    assert found["lstm"] == "measured"
    assert found["windowed"] == "not run"
    assert len(runs) == 1
