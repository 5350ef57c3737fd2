"""Tests of scripts/bench_laptop.sh and of the tables of its results."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.bench_tables import BEGIN, END, format_reports, read_reports

TRAIN = {"workload": "train", "family": "vit", "unit": "ms per step"}
MEMORY = {"workload": "memory", "family": "vit", "unit": "MiB"}
MEASUREMENTS = [
    {
        **TRAIN,
        "contender": "fourfold",
        "values": [268.04, 267, 312.4],
        "ratios": [1, 1, 1],
        "utilization": [0.551, 0.55, 0.5],
        "limit": "matrix product",
    },
    {**TRAIN, "contender": "timm", "values": [400, 320, 640], "ratios": [1.5, 1.2, 2]},
    {**TRAIN, "contender": "nanogpt", "note": "not installed"},
    {**MEMORY, "contender": "fourfold", "values": [1234.56], "ratios": [1.0]},
    {**MEMORY, "contender": "timm", "values": [617.28], "ratios": [0.5]},
]


def test_tables_have_fourfold_first_and_a_column_for_each_peer(tmp_path: Path) -> None:
    report = {
        "machine": {"commit": "abc1234"},
        "measurements": MEASUREMENTS,
        "settings": {"precision": "bf16", "size": "laptop", "rounds": 3},
    }
    (tmp_path / "first").mkdir()
    (tmp_path / "first/bench.json").write_text(json.dumps(report))
    text = format_reports(read_reports(tmp_path))
    for line in (
        "| train | fourfold | of the matrix product | timm | nanogpt |",
        "| vit | 268 [267, 312.4] ms per step | 55 % [50, 55.1] | 1.5 [1.2, 2] | not installed |",
        "| memory | fourfold | timm |",
        "| vit | 1,235 MiB | 0.5 |",
        "`bf16`, size laptop, 3 rounds, commit abc1234: [full report](first/bench.md).",
    ):
        assert line in text.splitlines(), text


@pytest.mark.slow
def test_laptop_suite_with_tiny_models(root: Path, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(
        f"# Title\n\nWords.\n\n{BEGIN}\nprevious tables\n{END}\n\nMore words.\n"
    )
    command = ["sh", str(root / "scripts/bench_laptop.sh"), str(tmp_path), "--peers", "none"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {
        **os.environ,
        "SIZE": "tiny",
        "ROUNDS": "1",
        "PATH": path,
        "PARTS": "wide decoding_fp32",
    }
    subprocess.run(command, check=True, env=environment)
    page = (tmp_path / "README.md").read_text()
    assert page.startswith("# Title\n\nWords.\n\n")
    assert page.endswith(f"\n{END}\n\nMore words.\n")
    assert "previous tables" not in page
    found = [line for line in page.splitlines() if line.startswith("## ")]
    assert found == ["## decoding_fp32", "## wide"]
    before = (tmp_path / "wide/bench.json").stat().st_mtime
    subprocess.run(command, check=True, env=environment)
    assert (tmp_path / "wide/bench.json").stat().st_mtime == before
