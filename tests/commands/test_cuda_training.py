"""Training, exact resume and testing of every task on a CUDA device."""

import csv
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from scripts.tools.kill_cases import COMMON, tasks, write_files
from scripts.tools.kill_test import difference

FAMILIES = ("translation", "masked LM", "causal LM", "images", "recurrent")
CASES = [
    *((task, "bf16-mixed") for task in tasks(Path())),
    *((task, precision) for task in FAMILIES for precision in ("32-true", "16-mixed")),
]
ON_CUDA = (
    *("--trainer.accelerator=gpu", "--trainer.devices=1", "--trainer.deterministic=true"),
    *("--trainer.max_steps=8", "--checkpoint.every_n_steps=3"),
)


class Killed(BaseException):
    """Exception that no handler catches, like SIGKILL."""


@pytest.mark.cuda
@pytest.mark.parametrize(("task", "precision"), CASES)
def test_training_resumes_exactly_on_cuda(
    task: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("jsonargparse", "babel", "num2words", "sklearn", "torchvision", "sacrebleu"):
        pytest.importorskip(package)
    from fourfold.callbacks.monitoring.throughput import StepMetrics
    from fourfold.cli import main

    write_files(tmp_path)
    options = [*tasks(tmp_path)[task], *COMMON, *ON_CUDA, f"--trainer.precision={precision}"]

    def fit(run: str) -> int:
        return main(["fit", *options, "--run_dir", str(tmp_path / run)])

    assert fit("whole") == 0
    start = StepMetrics.on_train_batch_start

    def killed(self: Any, trainer: Any, *rest: Any) -> None:
        if trainer.fit_loop.total_batch_idx == 5:
            raise Killed
        start(self, trainer, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(StepMetrics, "on_train_batch_start", killed)
        with pytest.raises(Killed):
            fit("resumed")
    assert fit("resumed") == 0
    assert difference(tmp_path / "whole", tmp_path / "resumed") == ""
    assert main(["test", "--run_dir", str(tmp_path / "whole")]) == 0


def losses(run: Path) -> list[float]:
    with (run / "metrics.csv").open(newline="") as file:
        return [float(row["train/loss"]) for row in csv.DictReader(file) if row.get("train/loss")]


@pytest.mark.cuda
@pytest.mark.parametrize("task", ["causal LM", "images"])
@pytest.mark.parametrize("options", [["--trainer.strategy=fsdp2"], ["--compile=true"]])
def test_fsdp2_and_compile_train_like_eager(task: str, options: list[str], tmp_path: Path) -> None:
    for package in ("jsonargparse", "babel", "sklearn", "torchvision"):
        pytest.importorskip(package)
    write_files(tmp_path)
    given = [*tasks(tmp_path)[task], *COMMON, *ON_CUDA[:2], "--trainer.precision=bf16-mixed"]
    given += ["--trainer.max_steps=8", "--model.config.dropout=0.0"]
    for name, more in {"eager": [], "other": options}.items():
        run = ["--run_dir", str(tmp_path / name)]
        command = [sys.executable, "-m", "fourfold", "fit", *given, *more, *run]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
    wanted, found = losses(tmp_path / "eager"), losses(tmp_path / "other")
    assert len(wanted) == 8
    assert found == pytest.approx(wanted, rel=2e-2)


@pytest.mark.cuda
@pytest.mark.parametrize("task", FAMILIES[:4])
def test_host_waits_for_the_gpu_only_in_logged_steps(task: str, tmp_path: Path) -> None:
    for package in ("jsonargparse", "babel", "num2words", "sklearn", "torchvision", "sacrebleu"):
        pytest.importorskip(package)
    import torch

    from fourfold.callbacks.monitoring.throughput import StepMetrics
    from fourfold.cli import main

    write_files(tmp_path)
    given = [*tasks(tmp_path)[task], *COMMON, *ON_CUDA[:2], "--trainer.precision=bf16-mixed"]
    given += ["--trainer.max_steps=14", "--trainer.log_every_n_steps=9"]
    given += ["--checkpoint.every_n_steps=100", "--log_every_seconds=1000"]
    start = StepMetrics.on_train_batch_start

    def watched(self: Any, trainer: Any, *rest: Any) -> None:
        start(self, trainer, *rest)
        # Neither the first nor the last step of an epoch of seven, nor next to a logged one.
        torch.cuda.set_sync_debug_mode("warn" if 10 <= trainer.global_step < 12 else "default")

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        patch.setattr(StepMetrics, "on_train_batch_start", watched)
        assert main(["fit", *given, "--run_dir", str(tmp_path / "run")]) == 0
    torch.cuda.set_sync_debug_mode("default")
    waits = [f"{w.filename}:{w.lineno}" for w in caught if "synchronizing" in str(w.message)]
    assert waits == []
