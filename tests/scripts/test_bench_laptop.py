"""The benchmarks of results/bench: their tables, and the script with tiny shapes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.bench_tables import BEGIN, END, read, tables

ROWS = [
    {"work": "train", "family": "vit", "way": "fourfold", "unit": "ms a step", "ratios": [1, 1, 1],
     "values": [268.04, 267, 312.4], "shares": [0.551, 0.55, 0.5], "ceiling": "matrix product"},
    {"work": "train", "family": "vit", "way": "timm", "unit": "ms a step", "ratios": [1.5, 1.2, 2],
     "values": [400, 320, 640]},
    {"work": "train", "family": "vit", "way": "nanogpt", "unit": "ms a step", "note": "not here"},
    {"work": "memory", "family": "vit", "way": "fourfold", "unit": "MiB", "values": [1234.56],
     "ratios": [1.0]},
    {"work": "memory", "family": "vit", "way": "timm", "unit": "MiB", "values": [617.28],
     "ratios": [0.5]},
]  # fmt: skip


def test_ours_stands_first_and_peers_beside_it(tmp_path: Path) -> None:
    part = {"machine": {"commit": "abc1234"}, "rows": ROWS,
            "settings": {"precision": "bf16", "size": "laptop", "rounds": 3}}  # fmt: skip
    (tmp_path / "first").mkdir()
    (tmp_path / "first/bench.json").write_text(json.dumps(part))
    text = tables(read(tmp_path))
    for line in (
        "| train | ours | of the matrix product | timm | nanogpt |",
        "| vit | 268 [267, 312.4] ms a step | 55 % [50, 55.1] | 1.5 [1.2, 2] | not here |",
        "| memory | ours | timm |",
        "| vit | 1,235 MiB | 0.5 |",
        "`bf16`, size laptop, 3 rounds, commit abc1234: [all of it](first/bench.md).",
    ):
        assert line in text.splitlines(), text


@pytest.mark.slow
def test_all_of_it_with_tiny_shapes(root: Path, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(
        f"# Title\n\nWords.\n\n{BEGIN}\nold\n{END}\n\nMore words.\n"
    )
    command = ["sh", str(root / "scripts/bench_laptop.sh"), str(tmp_path), "--peers", "none"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "SIZE": "tiny", "ROUNDS": "1", "PATH": path,
                   "PARTS": "wide writing_fp32"}  # fmt: skip
    subprocess.run(command, check=True, env=environment)
    page = (tmp_path / "README.md").read_text()
    assert page.startswith("# Title\n\nWords.\n\n")
    assert page.endswith(f"\n{END}\n\nMore words.\n")
    assert "old" not in page
    found = [line for line in page.splitlines() if line.startswith("## ")]
    assert found == ["## wide", "## writing_fp32"]
    before = (tmp_path / "wide/bench.json").stat().st_mtime
    subprocess.run(command, check=True, env=environment)
    assert (tmp_path / "wide/bench.json").stat().st_mtime == before
