"""Cost of decoding: memory of caches against formulas, measurements at each position, and cells."""

from pathlib import Path
from typing import Any

import pytest

from fourfold.reproduce.layers.timing import time_rows
from fourfold.reproduce.load_tables import find_tables
from fourfold.reproduce.measured import decoding
from fourfold.reproduce.measured.decoding import cache_bytes, growth, measure_decoding

RECURRENT: Any = {"d_model": 8, "hidden_size": 12, "n_layers": 2, "vocab_size": 9, "max_len": 99}
BLOCKS: Any = {"d_model": 8, "n_layers": 2, "n_heads": 2, "d_ff": 8, "vocab_size": 9, "max_len": 99}
SETUPS: dict[str, Any] = {
    "transformer": {"model": "CausalLM", "config": BLOCKS},
    "window": {"model": "CausalLM", "config": {**BLOCKS, "window": 5}},
    "lstm": {"model": "RecurrentLM", "config": RECURRENT},
    "gru": {"model": "RecurrentLM", "config": {**RECURRENT, "cell": "gru"}},
}


@pytest.mark.parametrize("position", [1, 40])
def test_only_the_cache_of_a_transformer_without_window_grows(position: int) -> None:
    found = {name: cache_bytes(setup, position) for name, setup in SETUPS.items()}
    per_token = 4 * 2 * 2 * 8  # keys and values of two layers, in fp32
    assert found == {
        "transformer": position * per_token,
        "window": min(position, 4) * per_token,
        "lstm": 4 * 2 * 2 * 12,
        "gru": 4 * 2 * 12,
    }


@pytest.mark.parametrize("name", SETUPS)
def test_each_position_is_timed_in_each_round(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    inputs = decoding.CausalStep.__call__

    def record(step: Any, ids: Any) -> Any:
        read.append((step.cache.length, ids.shape[1]))
        return inputs(step, ids)

    monkeypatch.setattr(decoding.CausalStep, "__call__", record)
    times = measure_decoding(SETUPS[name], rounds=3, positions=(4, 20))
    assert [list(in_round) for in_round in times] == [["4", "20"]] * 3
    assert all(in_round[p]["token"] > 0 for in_round in times for p in ("4", "20"))
    # One warm-up and three rounds; each of them begins at the position again.
    expected = [(p + i, 1) for p in (4, 20) for i in range(decoding.N_TOKENS)] * 4
    assert sorted(read) == sorted(expected)


def test_growth_is_relative_to_the_first_position_of_the_same_round() -> None:
    times = [{"16": {"token": a}, "64": {"token": b}} for a, b in ((1.0, 3.0), (2.0, 2.0))]
    assert growth(times, 64) == [3.0, 1.0]
    assert growth(times, 16) == [1.0, 1.0]


def test_cells_of_a_row_with_a_model_are_ratios(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (table,) = find_tables(["fourfold/recurrence"])

    def measure(setup: Any, rounds: int) -> Any:
        return [{str(n): {"token": n / 16} for n in decoding.POSITIONS}] * rounds

    monkeypatch.setattr(decoding, "measure_decoding", measure)
    row = table.rows["transformer"]
    cells, runs = time_rows(table, [row], 2, tmp_path)
    found = {c.column: c.values for c in cells if c.row == row.name}
    assert found == {f"time_{n}": [n / 16] * 2 for n in decoding.POSITIONS[1:]}
    assert {c.verdict for c in cells if c.row != row.name} == {"not run"}
    assert [(run["row"], run["seed"]) for run in runs] == [("transformer", 0), ("transformer", 1)]
