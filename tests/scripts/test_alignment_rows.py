"""Data, steps and table of scripts/alignment_rows.py, with trainings that are not run."""

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fourfold.text_files import read_lines
from scripts import alignment_rows as script


def test_rows_train_on_joined_pairs_and_are_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, data_dir: Path
) -> None:
    monkeypatch.setenv("FOURFOLD_DATA", str(data_dir))
    commands: list[list[str]] = []
    pairs: list[Any] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: commands.append(command))
    monkeypatch.setattr(Path, "touch", lambda path: path.parent.mkdir(parents=True, exist_ok=True))
    monkeypatch.setattr(script.fourfold, "load", lambda path: path)

    def rates(checkpoint: str, given: Any) -> dict[str, dict[str, float]]:
        pairs.append(given)
        aer = 0.4 if Path(checkpoint).parts[-3] == "dot" else 0.5
        return {"layer 1, input": {"aer": aer, "precision": 0.25, "recall": 1.0}}

    monkeypatch.setattr(script, "error_rates", rates)
    out, runs = tmp_path / "rates.csv", tmp_path / "runs"
    arguments = ["alignment_rows.py", str(out), "--runs", str(runs), "--rows", "additive", "dot"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert script.main() == 0

    rows = list(csv.reader(out.open()))[1:]
    assert rows == [
        ["additive", "layer 1, input", "50.00", "25.00", "100.00"],
        ["dot", "layer 1, input", "40.00", "25.00", "100.00"],
    ]
    assert [len(given) for given in pairs] == [200, 200]
    source, target = (read_lines(str(runs / f"train.{lang}")) for lang in ("en", "de"))
    assert len(source) == len(target) == 39_000
    assert source[0] == read_lines("translation/multi30k/train.en.gz")[0]
    assert target[-1] == read_lines("translation/wmt_aligned_sample/train.10k.de.gz")[-1]
    steps = [[int(c[i + 1]) for i, x in enumerate(c) if x.endswith("max_steps")] for c in commands]
    assert [last / first for first, last in steps] == [2, 2]
