"""Training, exact resume and testing of every task on a CUDA device."""

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
