"""Callbacks that make a resumed run end bit for bit as one that was never interrupted.

See "What a run rests on" in CONTRIBUTING.md. Lightning prefetches batches and restores random
numbers differently after a resume. Here each batch carries its position in the data, and dropout is
seeded by the number of the step.
"""

from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer

from fourfold.data.loading.datamodule import ResumableDataModule
from fourfold.lightning_internals import clear_restart_flags


class ExactResume(Callback):
    """Notes the position of the trained batches in the DataModule and seeds dropout by the step.

    Ranks get different dropout masks (Lightning seeds them alike), and no random state is saved.
    With a plain LightningDataModule, whose position is not known, the interrupted epoch restarts.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set Lightning's batch counters to the position in the data.

        Lightning counts the batches of one rank, the DataModule those of all ranks. With the
        counters of another number of ranks, gradient accumulation would end at wrong batches.
        """
        data = resumable_data(trainer)
        progress = trainer.fit_loop.epoch_loop.batch_progress
        if not progress.current.ready or progress.is_last_batch:
            return
        position = 0 if data is None else data.position.batch
        batches_of_rank = -(-position // trainer.world_size)  # rounded up
        difference = batches_of_rank - progress.current.ready
        for counts in (progress.current, progress.total):
            for name in ("ready", "started", "processed", "completed"):
                setattr(counts, name, getattr(counts, name) + difference)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Seed dropout."""
        torch.manual_seed(step_seed(trainer))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Pass the batch's position to the DataModule, which saves it in checkpoints."""
        data = resumable_data(trainer)
        if data is not None:
            data.mark_trained(batch.epoch, batch.position)


def resumable_data(trainer: Trainer) -> ResumableDataModule | None:
    """Return the Trainer's DataModule if it can resume within an epoch."""
    data = getattr(trainer, "datamodule", None)
    return data if isinstance(data, ResumableDataModule) else None


def step_seed(trainer: Trainer) -> int:
    """Return the seed of the current training batch, a function of data seed, batch and rank."""
    seed = getattr(trainer.datamodule, "seed", 0)  # type: ignore[attr-defined]
    number = trainer.fit_loop.total_batch_idx
    # Three odd multipliers make seeds of different (seed, number, rank) different; torch's
    # generator mixes their bits.
    mixed: int = seed * 1_000_003 + number * 7_919 + trainer.global_rank * 104_729
    return mixed % 2**63


class FixEpochEndResume(Callback):
    """Makes a run that resumes at the end of an epoch start the next one.

    With `max_steps`, FitLoop resumes the complete epoch, runs no batch and counts the epoch again.
    The data of the next epoch would be skipped, and logged steps would be one too high. With
    `max_epochs`, Lightning starts the next epoch itself.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Correct the progress after it is restored, before the first batch."""
        loop = trainer.fit_loop
        if loop.restarted_on_epoch_end:
            loop.epoch_progress.increment_completed()
            loop.reset_restart_stage()
            clear_restart_flags(trainer)
