"""`fourfold diff` of run directories: options, metrics and curves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from matplotlib.figure import Figure

from fourfold.commands.compare_runs import find_runs, read_curves, read_metrics
from fourfold.commands.metrics_report import write_metrics

CSV = "step,train/loss,val/loss,val/top1\n1,3.0,,\n2,,2.5,0.1\n4,,2.0,0.3\n6,,2.25,0.2\n7,1"


def make_run(folder: Path, lr: float, metrics: dict[str, Any] | None = None, csv: str = "") -> Path:
    folder.mkdir(parents=True)
    config = {
        "run_dir": str(folder),
        "model": {"init_args": {"optimizer": {"lr": lr, "betas": [0.9, lr]}, "z_loss": None}},
        "data": {"batch_size": 8},
        **({"ema_decay": 0.5} if lr > 1 else {}),
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    if metrics:
        write_metrics(folder / "metrics.json", metrics, {"command": "fourfold test"})
    if csv:
        (folder / "metrics.csv").write_text(csv)
    return folder


def rows_of(out: str) -> dict[str, list[str]]:
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines()]
    return {first: rest for first, *rest in filter(None, cells)}


def test_metrics_and_curves_of_a_run(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "a", 1.0, {"test/loss": 1.5, "n": 3, "x": float("inf"), "y": [1]}, CSV
    )
    curves = read_curves(run)
    assert curves["val/loss"] == ([2, 4, 6], [2.5, 2.0, 2.25])
    assert curves["train/loss"] == ([1], [3.0])  # not that of the incomplete last row
    expected = {"val/loss": 2.0, "val/top1": 0.3, "test/loss": 1.5, "n": 3.0, "x": float("inf")}
    assert read_metrics(run) == expected
    assert list(read_metrics(run, validation=False)) == ["test/loss", "n", "x"]
    assert read_metrics(make_run(tmp_path / "b", 1.0)) == {}


def test_runs_are_compared(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "s/lr=1/seed_0", 1.0, {"test/loss": 1.5}, CSV)
    make_run(tmp_path / "s/lr=2/seed_0", 2.0, {"test/loss": 0.25, "test/f1": 0.5}, CSV)
    make_run(tmp_path / "z", 1.0)
    figures: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k))[1]
    )
    result = run("diff", tmp_path / "s", tmp_path / "z", "--out", tmp_path / "curves.png")
    assert result.code == 0, result.err
    assert f"B  {tmp_path}/s/lr=2/seed_0" in result.out
    rows = rows_of(result.out)
    assert rows == {
        "ema_decay": ["null", "0.5", "null"],
        "model.init_args.optimizer.lr": ["1.0", "2.0", "1.0"],
        "model.init_args.optimizer.betas": ["[0.9, 1.0]", "[0.9, 2.0]", "[0.9, 1.0]"],
        "val/loss": ["2", "2", "-"],
        "val/top1": ["0.3", "0.3", "-"],
        "test/loss": ["1.5", "0.25", "-"],
        "test/f1": ["-", "0.5", "-"],
    }
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"
    axes = figures[0].axes
    assert [axis.get_title() for axis in axes] == ["train/loss", "val/loss", "val/top1"]
    assert [list(line.get_ydata()) for line in axes[1].lines] == [[2.5, 2.0, 2.25]] * 2 + [[]]


def test_bad_folders_are_reported(run: Callable[..., Any], tmp_path: Path) -> None:
    good = make_run(tmp_path / "a", 1.0)
    (tmp_path / "empty").mkdir()
    (damaged := make_run(tmp_path / "b", 1.0) / "config.yaml").write_text("[")
    for words, message in (
        ([good, tmp_path / "empty"], f"{tmp_path}/empty: there is no run directory"),
        ([good, damaged.parent], f"{damaged}: the config file cannot be read"),
        ([good, good, "--out", tmp_path / "c.png"], "--out needs curves"),
        ([good] * 27, "RECIPE must be at most 26 runs, got 27"),
        ([good, "vit/tiny"], "a"),
    ):
        result = run("diff", *words)
        assert (result.code, result.err.count("\n")) == (2, 1), result.err
        assert message in result.err
    assert find_runs(good) == [good]
