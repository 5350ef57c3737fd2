"""What makes a resumed run go on exactly where it stopped.

CONTRIBUTING.md, "What a run rests on", has the rules. Lightning prefetches batches and replays
random numbers differently after a resume. Here the place in the data travels with each batch, and
dropout is seeded by the step.
"""

from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer


class ExactResume(Callback):
    """Tells the DataModule what has really been trained on, and seeds every step by its number.

    Ranks get different dropout (Lightning seeds them alike), and nothing random has to be saved.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count batches as this number of processes does, where the checkpoint had another.

        Else windows of accumulated batches would end at the wrong ones. Lightning's count is of one
        rank's batches, the data's of all ranks'.
        """
        progress = trainer.fit_loop.epoch_loop.batch_progress
        if not progress.current.ready or progress.is_last_batch:
            return
        position: int = trainer.datamodule.consumed[1]  # type: ignore[attr-defined]
        more = -(-position // trainer.world_size) - progress.current.ready
        for counts in (progress.current, progress.total):
            for name in ("ready", "started", "processed", "completed"):
                setattr(counts, name, getattr(counts, name) + more)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Seed dropout from (seed, batch number, rank)."""
        torch.manual_seed(step_seed(trainer))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Take over the batch's place in the data, which the checkpoint then holds."""
        trainer.datamodule.set_consumed(batch.epoch, batch.position)  # type: ignore[attr-defined]


def step_seed(trainer: Trainer) -> int:
    """The seed of the training batch at hand, on this rank."""
    seed = getattr(trainer.datamodule, "seed", 0)  # type: ignore[attr-defined]
    number = trainer.fit_loop.total_batch_idx
    # Three odd multipliers keep (seed, number, rank) apart; torch mixes the bits itself.
    mixed: int = seed * 1_000_003 + number * 7_919 + trainer.global_rank * 104_729
    return mixed % 2**63
