"""Tests of the benchmark that translates a file with fourfold and transformers."""

import json
import sys
from pathlib import Path

import pytest

from fourfold.cli import main as fourfold
from scripts import bench_translate

SMALL = ["d_model=16", "n_layers=1", "n_heads=2", "d_ff=16", "max_len=128"]


def test_all_methods_translate_every_line(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    run, out = tmp_path / "run", tmp_path / "out/bench.json"
    shape = [f"--model.config.{change}" for change in SMALL]
    fit = ["fit", "--config", str(root / "configs/vaswani2017/tiny.yaml"), *shape]
    assert fourfold([*fit, "--trainer.max_steps=2", "--data.rows=200", f"--run_dir={run}"]) == 0
    source = tmp_path / "source.txt"
    source.write_text("".join(f"{day} May 19{day}\n" for day in range(10, 20)) + "\n4 June\n")
    arguments = [str(run), str(source), "--rounds=2", "--max-new=6", "--batch-size=4", "--beam=2"]
    monkeypatch.setattr(sys, "argv", ["bench_translate.py", *arguments, f"--out={out}"])
    assert bench_translate.main() == 0
    report = json.loads(out.read_text())
    assert report["about"]["source"] == "source.txt"
    assert list(report["methods"]) == [
        bench_translate.FOURFOLD,
        bench_translate.TRANSFORMERS,
        bench_translate.TRANSFORMERS_SORTED,
    ]
    for row in report["methods"].values():
        assert len(row["seconds"]) == len(row["relative_to_fourfold"]) == 2
        assert min(row["seconds"]) > 0
    fourfold_row, peer, peer_sorted = report["methods"].values()
    assert fourfold_row["equal_translations"] == 1.0
    assert peer["equal_translations"] == peer_sorted["equal_translations"] > 0.5
    assert "relative to fourfold" in capsys.readouterr().out
