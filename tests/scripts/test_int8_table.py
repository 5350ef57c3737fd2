"""Table of int8 weights: rows, sizes and ratios of a tiny model."""

import pytest

from fourfold.models import CausalLM, CausalLMConfig
from scripts import int8_table
from tests.fixtures.tiny_models import LANGUAGE, tokens


def test_each_precision_has_a_row_with_size_and_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = tokens(2, 5)
    loads = {"tiny": (lambda: CausalLM(CausalLMConfig(**LANGUAGE)), {"batch 2, texts": None})}
    loads["tiny"][1]["batch 2, texts"] = lambda model: model(ids)
    monkeypatch.setattr(int8_table, "workloads", lambda: loads)
    rows = int8_table.speed(rounds=3)
    assert [row.precision for row in rows] == ["fp32", "bf16", "int8"]
    fp32, bf16, int8 = rows
    assert int8.megabytes < 0.6 * fp32.megabytes
    assert bf16.megabytes == fp32.megabytes / 2
    assert (fp32.ratio, fp32.lowest, fp32.highest) == (1.0, 1.0, 1.0)
    assert int8.lowest <= int8.ratio <= int8.highest
    tested = int8_table.Row("r", "test split", "int8", 0.5, metric="test/bleu", value=0.25)
    lines = int8_table.table([*rows, tested]).splitlines()
    assert len(lines) == 4 + 4
    assert lines[-1] == "| r | test split | int8 | 0.5 |  |  | test/bleu 0.25 |"
