from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lightning import LightningDataModule
from lightning.pytorch.loops.progress import _BatchProgress, _OptimizationProgress, _Progress

from fourfold.callbacks.checkpointing.exact_resume import (
    ExactResume,
    step_seed,
)
from fourfold.data.loading.datamodule import BatchedDataset, ResumableDataModule
from fourfold.data.loading.length_bucketing import LengthBucketedOrder

COUNTERS = ("ready", "started", "processed", "completed")


class EmptyData(ResumableDataModule):
    def build(self) -> dict[str, BatchedDataset]:
        return {}

    def artifacts(self) -> dict[str, Any]:
        return {}


def make_trainer(seed: int = 0, batch: int = 0, rank: int = 0, **loop: Any) -> Any:
    return SimpleNamespace(
        datamodule=EmptyData(seed),
        fit_loop=SimpleNamespace(
            total_batch_idx=batch, epoch_progress=_Progress(), restarted_on_epoch_end=False, **loop
        ),
        global_rank=rank,
        current_epoch=0,
        overfit_batches=0,
        ckpt_path=None,
        accumulate_grad_batches=1,
        train_dataloader=[],
    )


def test_step_seeds_differ_between_seeds_batches_and_ranks() -> None:
    triples = [(s, b, r) for s in (0, 1, 2, 12345) for b in range(300) for r in range(16)]
    seeds = [step_seed(make_trainer(*triple)) for triple in triples]
    assert len(set(seeds)) == len(triples)
    assert seeds == [step_seed(make_trainer(*triple)) for triple in triples]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert 0 <= step_seed(make_trainer(2**60, 10**9, 4096)) < 2**63


def test_dropout_is_seeded_before_each_batch() -> None:
    masks = []
    for batch in (3, 4, 3):
        torch.rand(5)  # other random numbers must not matter
        ExactResume().on_train_batch_start(make_trainer(batch=batch), None, None, 0)  # type: ignore[arg-type]
        masks.append(torch.rand(100) < 0.5)
    assert torch.equal(masks[0], masks[2])
    assert not torch.equal(masks[0], masks[1])


def restored_trainer(batches_of_rank: int, position: int, world_size: int) -> Any:
    """A Trainer whose checkpoint was saved after `position` batches of the epoch on all ranks."""
    progress = _BatchProgress()
    progress.total.ready = progress.total.started = 100 + batches_of_rank
    progress.total.processed = progress.total.completed = 100 + batches_of_rank
    for name in COUNTERS:
        setattr(progress.current, name, batches_of_rank)
    steps = SimpleNamespace(optim_progress=_OptimizationProgress())
    trainer = make_trainer(
        epoch_loop=SimpleNamespace(batch_progress=progress, automatic_optimization=steps),
        reset_restart_stage=lambda: None,
    )
    trainer.world_size = world_size
    trainer.datamodule.mark_trained(0, position)
    order = LengthBucketedOrder(np.ones(41), max_rows=2)  # 21 batches
    trainer.datamodule.splits = {"train": SimpleNamespace(order=order)}
    trainer.datamodule.trainer = trainer
    return trainer


@pytest.mark.parametrize(
    ("batches_of_rank", "position", "world_size", "expected"),
    [
        (6, 6, 1, 6),  # one process, as before
        (6, 12, 2, 6),  # two processes, as before
        (6, 12, 1, 12),  # saved by two processes, resumed by one
        (12, 12, 2, 6),  # saved by one process, resumed by two
        (5, 5, 2, 3),  # 16 batches remain, which take 8 of 11 steps
        (6, 6, 2, 3),  # 15 batches remain, which take 8 steps
        (0, 0, 4, 0),  # saved at the start of an epoch
    ],
)
def test_batch_counters_are_those_of_the_number_of_processes(
    batches_of_rank: int, position: int, world_size: int, expected: int
) -> None:
    trainer = restored_trainer(batches_of_rank, position, world_size)
    ExactResume().on_train_start(trainer, None)  # type: ignore[arg-type]
    progress = trainer.fit_loop.epoch_loop.batch_progress
    assert [getattr(progress.current, name) for name in COUNTERS] == [expected] * 4
    assert [getattr(progress.total, name) for name in COUNTERS] == [100 + expected] * 4


def test_batch_counters_of_a_complete_epoch_are_kept() -> None:
    trainer = restored_trainer(6, 12, world_size=1)
    trainer.fit_loop.epoch_loop.batch_progress.is_last_batch = True
    ExactResume().on_train_start(trainer, None)  # type: ignore[arg-type]
    assert trainer.fit_loop.epoch_loop.batch_progress.current.ready == 6


def test_epoch_of_a_plain_datamodule_restarts() -> None:
    trainer = restored_trainer(6, 0, world_size=1)
    trainer.datamodule = LightningDataModule()
    ExactResume().on_train_start(trainer, None)  # type: ignore[arg-type]
    progress = trainer.fit_loop.epoch_loop.batch_progress
    assert (progress.current.ready, progress.total.ready) == (0, 100)
    ExactResume().on_train_batch_end(trainer, None, None, None, 0)  # type: ignore[arg-type]


def test_position_of_a_trained_batch_reaches_the_datamodule() -> None:
    trainer = make_trainer()
    batch = SimpleNamespace(epoch=2, position=7)
    ExactResume().on_train_batch_end(trainer, None, None, batch, 0)  # type: ignore[arg-type]
    assert trainer.datamodule.position == (2, 7)
