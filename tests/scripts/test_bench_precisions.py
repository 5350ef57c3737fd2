"""Rows of the table of scripts/bench_precisions.py."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import bench_precisions


def test_row_has_medians_and_the_share_of_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = [("as shipped", 90), ("32-true", 120), ("as shipped", 110)]
    results = [
        {"name": name, "rate": rate, "unit": "tokens", "precision": "32-true"}
        for name, rate in measured
    ]
    code = "".join(f"print({json.dumps(result)!r}); " for result in results)
    start = subprocess.Popen
    monkeypatch.setattr(
        bench_precisions.subprocess,
        "Popen",
        lambda command, **options: start([sys.executable, "-c", code], **options),
    )
    row = "| a/b | tokens/s | 32-true | 100 | 120 | not reached | 0.83 |"
    assert bench_precisions.run("a/b", 60.0) == row


@pytest.mark.slow
def test_recipe_is_measured_in_each_precision_or_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FOURFOLD_DATA", str(tmp_path))
    cells = bench_precisions.run("bert/tiny", 300.0).split(" | ")
    assert cells[:2] == ["| bert/tiny", "tokens/s"]
    assert all(float(cell.replace(",", "")) > 0 for cell in cells[3:6])
    row = bench_precisions.run("vit/laptop_flowers", 300.0)
    assert row.startswith("| vit/laptop_flowers | skipped: images/flowers128: there is no such")
