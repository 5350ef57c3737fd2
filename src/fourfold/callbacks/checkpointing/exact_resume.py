"""Exact resume, bit for bit: seeds of dropout, position in the data, end of an epoch.

With Lightning alone, a resumed run differs from an uninterrupted run, because Lightning prefetches
batches and restores random numbers differently. In this package each batch has the fields `epoch`
and `position`. The position is the number of batches that all ranks together have trained in this
epoch when the step with this batch ends. Dropout is seeded by the index of the batch. See
"Guarantees of a run" in CONTRIBUTING.md.
"""

import os
import warnings
from functools import cache
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from fourfold.data.loading.datamodule import ResumableDataModule
from fourfold.lightning_internals import clear_restart_flags


class ExactResume(Callback):
    """Callback that seeds dropout by the batch index, and saves the position in the data.

    Every task adds this callback to the Trainer, before all other callbacks. Each rank has its own
    seed, so dropout masks differ between ranks. Lightning alone gives all ranks the same seed. No
    random state is saved. A plain LightningDataModule does not save the position in the data; a
    resumed run then starts the interrupted epoch again, unless the DataLoader saves a state. A
    validation that follows the step of the checkpoint is not repeated.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set Lightning's counters of epochs and batches to those of an uninterrupted run.

        Lightning counts the batches of one rank, and the DataModule counts the batches of all
        ranks. If the interrupted run had another number of ranks, the counters that Lightning
        restores are wrong. Gradient accumulation would then end at the wrong batches.
        """
        loop = trainer.fit_loop
        if loop.restarted_on_epoch_end:
            # With `max_steps`, Lightning would run the complete epoch again without a batch.
            loop.epoch_progress.increment_completed()
            loop.reset_restart_stage()
            clear_restart_flags(trainer)
        elif trainer.current_epoch == loop.epoch_progress.current.ready:
            # Saved after the last batch of an epoch: Lightning would not count the next epoch.
            loop.reset_restart_stage()
        data = resumable_data(trainer)
        if data is None:
            if hasattr(trainer.train_dataloader, "load_state_dict"):
                return  # Lightning has restored the state of the DataLoader
            _warn_of_plain_data(type(trainer.datamodule or trainer.train_dataloader).__name__)  # type: ignore[attr-defined]
        # Lightning's next check knows only loaders with a state; the sampler resumes without one.
        message = ".*your dataloader is not resumable.*"
        warnings.filterwarnings("ignore", message=message, module="lightning")
        progress = loop.epoch_loop.batch_progress
        if not progress.current.ready or progress.is_last_batch:
            return
        _warn_of_lost_gradient(trainer)
        done = 0 if data is None else data.n_train_batches(upto=data.position.batch)
        difference = done - progress.current.ready
        for counts in (progress.current, progress.total):
            for name in ("ready", "started", "processed", "completed"):
                setattr(counts, name, getattr(counts, name) + difference)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Seed all ranks alike, because samplers of plain data must shuffle alike on all ranks."""
        torch.manual_seed(step_seed(trainer, rank=0))

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        torch.manual_seed(step_seed(trainer))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Pass epoch and position of the batch to the DataModule, for its state in checkpoints."""
        data = resumable_data(trainer)
        if data is not None:
            # With `overfit_batches`, each epoch has the batches of epoch 0.
            epoch = trainer.current_epoch if trainer.overfit_batches else batch.epoch  # type: ignore[attr-defined]
            data.mark_trained(epoch, batch.position)


def resumable_data(trainer: Trainer) -> ResumableDataModule | None:
    """Return the DataModule of the Trainer if it is a `ResumableDataModule`, otherwise None."""
    data = getattr(trainer, "datamodule", None)
    return data if isinstance(data, ResumableDataModule) else None


def _warn_of_lost_gradient(trainer: Trainer) -> None:
    """Warn if the checkpoint was saved in the middle of gradient accumulation.

    If `accumulate_grad_batches` has changed, the numbers of steps and micro-batches do not agree.
    """
    loop = trainer.fit_loop.epoch_loop
    n_steps = loop.automatic_optimization.optim_progress.optimizer.step.current.completed
    n_batches: int = loop.batch_progress.current.processed  # type: ignore[attr-defined]
    expected, rest = divmod(n_batches, trainer.accumulate_grad_batches)
    if trainer.ckpt_path and rest and n_steps == expected:
        rank_zero_warn(
            f"{trainer.ckpt_path} was saved in the middle of gradient accumulation, and lacks the"
            f" gradient of {rest} micro-batches, so the resumed training differs from an"
            " uninterrupted one; validate and save at multiples of accumulate_grad_batches"
        )


@cache
def _warn_of_plain_data(name: str) -> None:
    """Warn once in a process that data of this class save no position."""
    message = "is not a ResumableDataModule: a resumed training restarts its last epoch"
    rank_zero_warn(f"{name} {message}")


def step_seed(trainer: Trainer, rank: int | None = None) -> int:
    """Compute the seed of the current batch, which differs between batches and ranks.

    The seed is computed from the seed of the DataModule, the index of the batch (counted over all
    epochs) and the rank, by default that of this process. Data without a seed have the seed of
    Lightning's `seed_everything`.
    """
    seed: Any = getattr(trainer.datamodule, "seed", None)  # type: ignore[attr-defined]
    seed = int(os.environ.get("PL_GLOBAL_SEED", 0)) if seed is None else int(seed)
    number = trainer.fit_loop.total_batch_idx
    rank = trainer.global_rank if rank is None else rank
    # The odd multipliers give different seeds for different (seed, number, rank). torch's generator
    # mixes the bits of a seed.
    return (seed * 1_000_003 + number * 7_919 + rank * 104_729) % 2**63
