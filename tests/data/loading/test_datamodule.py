"""ResumableDataModule: exact resume, other data rejected, splits, batch sizes, ranks."""

import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import fields
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, get_origin

import numpy as np
import pytest
import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from fourfold.data import (
    CaptionData,
    CausalTextData,
    DocumentData,
    ImageData,
    MaskedTextData,
    QuestionData,
    SequenceData,
    TokenData,
    TranslationData,
)
from fourfold.data.loading.datamodule import BatchedDataset, ResumableDataModule
from fourfold.data.loading.length_bucketing import LengthBucketedOrder
from fourfold.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore")
Seen = list[tuple[int, int, list[int]]]  # epoch, position and rows of each training batch


class NumberBatch(NamedTuple):
    x: torch.Tensor
    epoch: int
    position: int


class NumberDataset(BatchedDataset):
    def __init__(self, order: LengthBucketedOrder) -> None:
        self.order = order

    def batch(self, rows: np.ndarray, epoch: int, position: int) -> NumberBatch:
        return NumberBatch(torch.as_tensor(rows), epoch, position)


class NumberData(ResumableDataModule):
    batch_class = NumberBatch

    def __init__(self, seed: int = 3, num_workers: int = 0, n_rows: int = 50) -> None:
        super().__init__(seed, num_workers)
        self.n_rows = n_rows

    def build(self) -> dict[str, BatchedDataset]:
        train = LengthBucketedOrder(np.ones(self.n_rows), max_rows=7, seed=self.seed)
        val = LengthBucketedOrder(np.ones(5), max_rows=2, shuffle=False)
        return {"train": NumberDataset(train), "val": NumberDataset(val)}

    def artifacts(self) -> dict[str, Any]:
        return {}


class RenamedData(NumberData):
    pass


class RecordBatches(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: Seen = []

    def training_step(self, batch: NumberBatch, _: int) -> torch.Tensor:
        self.seen.append((batch.epoch, batch.position, batch.x.tolist()))
        return (self.weight * batch.x.float()).mean()

    def validation_step(self, batch: NumberBatch, _: int) -> None:
        pass

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class MarkTrained(Callback):
    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        trainer.datamodule.mark_trained(batch.epoch, batch.position)  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


def fit(
    data: ResumableDataModule,
    *,
    save_to: Path | None = None,
    resume: Path | None = None,
    save: dict[str, Any] | None = None,
    **trainer: Any,
) -> Seen:
    module = RecordBatches()
    callbacks: list[Callback] = [MarkTrained()]
    if save_to:
        save = save or {"every_n_train_steps": 1, "save_on_train_epoch_end": False}
        callbacks.append(ModelCheckpoint(save_to, filename="{step}", save_top_k=-1, **save))
    Trainer(
        max_epochs=2,
        callbacks=callbacks,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=bool(save_to),
        use_distributed_sampler=False,
        num_sanity_val_steps=0,
        **trainer,
    ).fit(module, data, ckpt_path=resume)
    return module.seen


@pytest.mark.parametrize(
    ("trainer", "save", "n_checkpoints"),
    [
        ({}, None, 16),
        ({"val_check_interval": 3}, None, 16),
        ({"accumulate_grad_batches": 3}, None, 6),
        ({}, {"every_n_epochs": 1, "save_on_train_epoch_end": True}, 2),
    ],
)
def test_resume_from_any_checkpoint_gives_the_remaining_batches(
    tmp_path: Path, trainer: dict[str, Any], save: dict[str, Any] | None, n_checkpoints: int
) -> None:
    expected = fit(NumberData(), save_to=tmp_path, save=save, **trainer)
    positions = [(epoch, position) for epoch, position, _ in expected]
    assert positions == [(e, p) for e in (0, 1) for p in range(1, 9)]
    checkpoints = sorted(tmp_path.glob("*.ckpt"))
    assert len(checkpoints) == n_checkpoints
    accumulated = trainer.get("accumulate_grad_batches", 1)
    for checkpoint in checkpoints:
        step = int(checkpoint.stem.split("=")[1])
        epochs, steps = divmod(step, -(-8 // accumulated))
        done = epochs * 8 + steps * accumulated
        assert fit(NumberData(), resume=checkpoint, **trainer) == expected[done:]


@pytest.mark.parametrize("step", [5, 8])
def test_resume_does_not_depend_on_prefetching_workers(tmp_path: Path, step: int) -> None:
    expected = fit(NumberData(), save_to=tmp_path)
    checkpoint = tmp_path / f"step={step}.ckpt"
    assert fit(NumberData(num_workers=2), resume=checkpoint) == expected[step:]


def test_second_fit_starts_at_the_first_batch(tmp_path: Path) -> None:
    data = NumberData()
    expected = fit(data, save_to=tmp_path)
    assert fit(data) == expected
    assert fit(data, resume=tmp_path / "step=3.ckpt") == expected[3:]
    assert fit(data) == expected


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (NumberData(seed=4), "seed must be 3, .*got 4"),
        (NumberData(n_rows=51), "data must be those of the checkpoint"),
        (RenamedData(), "step=3.ckpt: .*no position in RenamedData"),
    ],
)
def test_resume_with_other_data_is_rejected(
    tmp_path: Path, other: ResumableDataModule, message: str
) -> None:
    fit(NumberData(), save_to=tmp_path)
    with pytest.raises(InputError, match=message):
        fit(other, resume=tmp_path / "step=3.ckpt")


def test_missing_split_is_named() -> None:
    with pytest.raises(InputError, match=r"data\.test must be given: NumberData has no test split"):
        NumberData().test_dataloader()


@pytest.mark.parametrize(
    ("val", "test", "expected"),
    [
        ("a.txt", "a.txt", True),
        (["a.txt", "b.txt"], ["a.txt", "b.txt"], True),
        ("a.txt", "b.txt", False),
        ("a.txt", None, False),
        (None, None, False),
        (0.1, 0.1, False),  # equal fractions hold out different rows
    ],
)
@pytest.mark.parametrize(
    "data_class",
    [
        CausalTextData,
        DocumentData,
        MaskedTextData,
        QuestionData,
        SequenceData,
        TokenData,
        TranslationData,
    ],
)
def test_tests_on_val_compares_the_sources(
    data_class: Any, val: Any, test: Any, expected: bool
) -> None:
    options = {"source": "files"} if "source" in signature(data_class).parameters else {}
    data = data_class(train="t.txt", val=val, test=test, **options)
    assert data.tests_on_val is expected


LITERALS = [
    (data_class, option.name)
    for data_class in (CaptionData, CausalTextData, ImageData, MaskedTextData, SequenceData)
    for option in fields(data_class)
    if get_origin(option.type) is Literal
]


@pytest.mark.parametrize(("data_class", "option"), LITERALS)
def test_unknown_values_of_options_are_rejected(data_class: Any, option: str) -> None:
    with pytest.raises(InputError, match=rf"^data\.{option} must be one of"):
        data_class(**{option: "prefix_lm"}).setup()


@pytest.mark.parametrize("data_class", [ImageData, SequenceData])
@pytest.mark.parametrize("option", ["batch_size", "eval_batch_size"])
def test_empty_batches_are_rejected(data_class: Any, option: str) -> None:
    with pytest.raises(InputError, match=rf"^data\.{option} must be at least 1, got 0"):
        data_class(**{option: 0}).setup()


@pytest.mark.parametrize(
    "data_class",
    [CaptionData, CausalTextData, DocumentData, ImageData, SequenceData, TranslationData],
)
def test_builtin_data_have_a_test_split(data_class: Any) -> None:
    data = data_class()
    data.setup()
    assert len(data.split("test")) > 0
    assert not data.tests_on_val


@pytest.mark.parametrize("option", ["seed", "num_workers"])
def test_negative_options_are_rejected(option: str) -> None:
    with pytest.raises(InputError, match=f"^{option} must be at least 0.*, got -1"):
        NumberData(**{option: -1})


def attach_trainer(data: ResumableDataModule, rank: int, world_size: int) -> None:
    data.trainer = SimpleNamespace(  # type: ignore[assignment]
        limit_train_batches=1.0, global_rank=rank, world_size=world_size, ckpt_path=None
    )


def test_fewer_training_rows_than_processes_are_rejected_on_all_ranks() -> None:
    for rank in range(4):
        data = NumberData(n_rows=3)
        attach_trainer(data, rank, 4)
        with pytest.raises(InputError, match="at most the 3 rows of the train split, got 4"):
            data.train_dataloader()


def test_number_of_training_batches_is_that_of_one_rank() -> None:
    data = NumberData()
    assert data.n_train_batches() == 8
    attach_trainer(data, 1, 2)
    assert data.n_train_batches() == 4
    assert len(list(data.train_dataloader().batch_sampler)) == 4


def test_a_worker_serves_on_after_sigterm_to_all_processes() -> None:
    before = set(multiprocessing.active_children())
    loader = NumberData(num_workers=1, n_rows=200).train_dataloader()
    batches = iter(loader)
    rows = next(batches).x.tolist()
    (worker,) = set(multiprocessing.active_children()) - before
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGTERM)
    time.sleep(0.2)
    for batch in batches:
        rows += batch.x.tolist()
    assert sorted(rows) == list(range(200))
    os.kill(worker.pid, signal.SIGTERM)  # the second one ends it
    worker.join(10)
    assert worker.exitcode == -signal.SIGTERM
