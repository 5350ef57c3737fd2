"""A file translated by `fourfold translate` and by transformers, in turns."""

import json
import sys
from pathlib import Path

import pytest

from fourfold.cli import main as fourfold
from scripts import bench_translate

SMALL = ["d_model=16", "n_layers=1", "n_heads=2", "d_ff=16", "max_len=128"]


def test_every_way_translates_every_line(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    run, out = tmp_path / "run", tmp_path / "out/bench.json"
    shape = [f"--model.config.{change}" for change in SMALL]
    fit = ["fit", "--config", str(root / "configs/vaswani2017/tiny.yaml"), *shape]
    assert fourfold([*fit, "--trainer.max_steps=2", "--data.rows=200", f"--run_dir={run}"]) == 0
    source = tmp_path / "source.txt"
    source.write_text("".join(f"{day} May 19{day}\n" for day in range(10, 20)) + "\n4 June\n")
    words = [str(run), str(source), "--rounds=2", "--max-new=6", "--batch-size=4", "--beam=2"]
    monkeypatch.setattr(sys, "argv", ["bench_translate.py", *words, f"--out={out}"])
    assert bench_translate.main() == 0
    found = json.loads(out.read_text())
    assert found["about"]["source"] == "source.txt"
    assert list(found["ways"]) == [
        bench_translate.OURS, bench_translate.THEIRS, bench_translate.SORTED
    ]  # fmt: skip
    for row in found["ways"].values():
        assert len(row["seconds"]) == len(row["times_ours"]) == 2
        assert min(row["seconds"]) > 0
    ours, theirs, by_length = found["ways"].values()
    assert ours["same_translations"] == 1.0
    assert theirs["same_translations"] == by_length["same_translations"] > 0.5
    assert "of ours" in capsys.readouterr().out
