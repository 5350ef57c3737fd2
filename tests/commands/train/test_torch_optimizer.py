"""`--optimizer` and `--lr_scheduler` by class path, and their exact resume."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

Run = Callable[..., Any]

SGD = ["--optimizer=torch.optim.SGD", "--optimizer.lr=0.1", "--optimizer.momentum=0.9"]
STEP = ["--lr_scheduler=StepLR", "--lr_scheduler.step_size=1", "--lr_scheduler.gamma=0.5"]
EPOCHS = ["--trainer.max_steps=-1", "--trainer.limit_train_batches=2"]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    content = torch.load(folder / "checkpoints/last.ckpt", weights_only=True)
    state: dict[str, torch.Tensor] = content["state_dict"]
    return state


@pytest.mark.timeout(900)
def test_resume_with_an_optimizer_and_a_scheduler_of_torch_is_exact(
    run: Run, configs: dict[str, Path], here: Path
) -> None:
    call = ["fit", "--config", configs["lm"], *EPOCHS, *SGD, *STEP, "--trainer.log_every_n_steps=1"]
    whole = run(*call, "--run_dir=whole", "--trainer.max_epochs=3")
    assert whole.code == 0, whole.err
    for end in ("--trainer.max_steps=3", "--trainer.max_steps=4", "--trainer.max_epochs=3"):
        part = run(*call, "--run_dir=parts", "--trainer.max_epochs=3", end)
        assert part.code == 0, part.err
    first, second = weights(here / "whole"), weights(here / "parts")
    assert all(torch.equal(first[name], second[name]) for name in first)
    rows = list(csv.DictReader((here / "parts/metrics.csv").open()))
    rates = [float(row["train/lr"]) for row in rows if row["train/lr"]]
    # By epochs, as in Lightning.
    assert rates == pytest.approx([0.1, 0.1, 0.05, 0.05, 0.025, 0.025])
    recorded = yaml.safe_load((here / "parts/config.yaml").read_text())
    assert recorded["optimizer"]["class_path"] == "torch.optim.SGD"
    # Without the options, or with others, the states of the optimizer would not fit.
    for other in ([*SGD], ["--optimizer=Adam", *STEP]):
        result = run(*call[:3], *EPOCHS, "--run_dir=parts", "--trainer.max_epochs=4", *other)
        assert result.code == 2
        assert "with which this training started" in result.err
    # The config of the run directory is enough, and evaluations accept it.
    assert run("fit", "--run_dir=parts", "--trainer.max_epochs=4").code == 0
    assert run("validate", "--run_dir=parts").code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--model.optimizer.layer_decay=0.8", *SGD],
            "model.optimizer must have its defaults with --optimizer, got another layer_decay",
        ),
        (["--model.optimizer.name=muon", *SGD], "got another name"),
        (["--model.schedule.warmup_steps=2", *SGD], "model.schedule must have its defaults"),
        (STEP, "--lr_scheduler needs --optimizer"),
        (["--optimizer=torch.optim.Muon"], "--optimizer: Muon only supports 2D parameters"),
        (["--optimizer=SGD", "--optimizer.lr=-1"], "--optimizer: Invalid learning rate: -1"),
        (["--optimizer=SGD", "--optimizer.learning_rate=1"], "learning_rate"),
    ],
)
def test_options_that_the_optimizers_of_torch_lack_are_refused(
    options: list[str], message: str, run: Run, configs: dict[str, Path], here: Path
) -> None:
    result = run("fit", "--config", configs["lm"], "--run_dir=r", *options)
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1
    assert not list(here.iterdir())


def test_scheduler_that_watches_a_metric(run: Run, configs: dict[str, Path], here: Path) -> None:
    plateau = "lightning.pytorch.cli.ReduceLROnPlateau"
    options = [f"--lr_scheduler={plateau}", "--lr_scheduler.monitor=val/loss"]
    call = ["fit", "--config", configs["lm"], *EPOCHS, "--trainer.max_epochs=2", *SGD]
    result = run(*call, *options, "--run_dir=r")
    assert result.code == 0, result.err


def test_config_without_them_does_not_name_them(run: Run, configs: dict[str, Path]) -> None:
    printed = yaml.safe_load(run("fit", "--config", configs["lm"], "--print_config").out)
    assert {"optimizer", "lr_scheduler"}.isdisjoint(printed)
