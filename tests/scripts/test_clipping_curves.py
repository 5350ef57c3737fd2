"""Gradient norms by step: logged before clipping, and equal as long as no step was clipped."""

import csv
import json
from pathlib import Path

import pytest

from scripts import clipping_curves as script


def test_both_trainings_begin_alike_and_one_may_stop_early(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "GAIN", 3.0)
    given = ["--length", "10", "--max_steps", "30", "--lr", "100000.0"]
    assert script.main([str(tmp_path), *given]) == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert json.loads(capsys.readouterr().out) == summary
    free, clipped = (summary[name] for name in script.CLIPPING)
    assert free["first_loss"] == clipped["first_loss"]
    assert free["steps"] < clipped["steps"] == 30  # the loss became infinite
    assert clipped["largest_norm"] > 1  # the norm before clipping
    with (tmp_path / "norms.csv").open() as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["step", *script.CLIPPING]
    assert rows[1][1] == rows[1][2]
    assert rows[-1][1] == ""
    assert (tmp_path / "norms.png").stat().st_size > 0
