"""Tests of scripts/measurements/bench_rows.py."""

import csv
import sys
from itertools import count
from multiprocessing.pool import ThreadPool
from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts.measurements import bench_rows


def test_each_row_has_the_median_of_its_rounds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rates = count(1)
    monkeypatch.setattr(bench_rows, "get_context", lambda _: SimpleNamespace(Pool=ThreadPool))
    monkeypatch.setattr(bench_rows, "measure", lambda *_: (float(next(rates)), "tokens/s"))
    out = tmp_path / "rows.csv"
    monkeypatch.setattr(sys, "argv", ["bench_rows.py", "luong2015/multi30k", str(out)])
    assert bench_rows.main() == 0
    with out.open() as file:
        rows = list(csv.DictReader(file))
    n_rows = len(rows)
    assert rows[0]["row"] == "none"
    assert [int(rows[0][key]) for key in ("slowest", "median", "fastest", "rounds")] == [
        1,
        1 + n_rows,
        1 + 2 * n_rows,
        3,
    ]


@pytest.mark.slow
def test_rate_of_a_recipe_is_positive() -> None:
    rate, unit = bench_rows.measure(["--config", "gpt2/tiny"], 1)
    assert rate > 0
    assert unit == "tokens/s"
