"""Normalization of loss and gradient, unused parameters, logged values."""

import csv
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Callback, Trainer
from lightning.pytorch.loggers import CSVLogger

from fourfold.errors import InputError
from tests.fixtures.tiny_tasks import causal, train, words


def test_first_step_without_targets_is_rejected(texts: Path, tmp_path: Path) -> None:
    task, data = words(texts)

    class Silent(type(task)):  # type: ignore[misc]
        def step(self, batch: Any) -> Any:
            return super().step(batch._replace(labels=torch.full_like(batch.labels, -100)))

    silent = Silent(task.config, task.optimizer, task.schedule)
    with pytest.raises(InputError, match="gives no target in the first step"):
        train(silent, data, tmp_path)


@pytest.mark.parametrize("devices", [1, 2])
def test_unused_parameters_are_named(devices: int, texts: Path, tmp_path: Path) -> None:
    task, data = causal(texts, max_rows=4)
    configure = task.configure_model

    def with_an_idle_layer() -> None:
        configure()
        task.model.stack.forgotten = torch.nn.Linear(2, 2)

    task.configure_model = with_an_idle_layer  # type: ignore[method-assign]
    found = "the loss does not depend on stack.forgotten.weight, stack.forgotten.bias"
    if devices == 1:
        with pytest.warns(UserWarning, match=found):
            train(task, data, tmp_path)
    else:
        with pytest.raises(Exception, match="find_unused_parameters=True"):  # of torch
            train(task, data, tmp_path, max_steps=2, devices=2, strategy="ddp_fork")


class NoteLosses(Callback):
    """Record the logged values of each step, on the first rank."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def on_train_batch_end(self, trainer: Trainer, *arguments: Any) -> None:
        loss = trainer.callback_metrics.get("train/loss")
        if trainer.is_global_zero and loss is not None:
            torch.save(loss, self.file)


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        (7, {"accumulate_grad_batches": 10_000}),
        (30, {"devices": 2, "strategy": "ddp_fork"}),
        (8, {"devices": 2, "strategy": "ddp_fork", "accumulate_grad_batches": 10_000}),
    ],
)
def test_logged_loss_is_that_of_the_whole_step(
    rows: int, options: dict[str, Any], texts: Path, tmp_path: Path
) -> None:
    """The 40 rows of an epoch, with different numbers of tokens, are divided in several ways."""
    file = tmp_path / "loss.pt"
    train(*words(texts, max_rows=2000), tmp_path, [NoteLosses(file)])
    whole = torch.load(file)
    file.unlink()
    train(*words(texts, max_rows=rows), tmp_path, [NoteLosses(file)], **options)
    torch.testing.assert_close(torch.load(file), whole, rtol=1e-12, atol=0)


def test_logged_loss_is_the_sum_over_the_number_of_targets(texts: Path, tmp_path: Path) -> None:
    task, data = words(texts, max_rows=13)
    steps: list[torch.Tensor] = []
    step, file = task.step, tmp_path / "loss.pt"

    def noted(batch: Any) -> Any:
        total, count = step(batch)
        steps.append((total / count).detach())
        return total, count

    class Compare(NoteLosses):
        def on_train_batch_end(self, trainer: Trainer, *arguments: Any) -> None:
            super().on_train_batch_end(trainer, *arguments)
            assert torch.equal(torch.load(file), steps[-1])

    task.step = noted  # type: ignore[method-assign]
    train(task, data, tmp_path, [Compare(file)], precision="32-true")
    assert len(steps) > 2


@pytest.mark.parametrize("accumulated", [1, 3])
def test_gradient_norm_is_that_of_the_mean_loss_before_clipping(
    accumulated: int, texts: Path, tmp_path: Path
) -> None:
    norms = []

    def note(task: Any) -> None:
        close = task.loss_normalizer.finalize_gradients

        def closed(*arguments: Any) -> None:
            close(*arguments)
            norms.append(math.sqrt(sum(float(p.grad.pow(2).sum()) for p in task.parameters())))

        task.loss_normalizer.finalize_gradients = closed

    task, data = causal(texts, max_rows=4)
    note(task)
    logger = CSVLogger(tmp_path)
    Trainer(
        max_steps=3,
        precision="bf16-mixed",
        accelerator="cpu",
        logger=logger,
        log_every_n_steps=1,
        gradient_clip_val=1e-3,
        accumulate_grad_batches=accumulated,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        limit_val_batches=0,
        default_root_dir=tmp_path,
    ).fit(task, data)
    rows = csv.DictReader((Path(logger.log_dir) / "metrics.csv").open())
    logged = [float(row["train/grad_norm"]) for row in rows]
    assert len(norms) == 3
    assert min(norms) > 1e-2
    assert logged == pytest.approx(norms, rel=1e-5)
