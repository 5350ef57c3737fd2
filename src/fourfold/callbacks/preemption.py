"""Stopped by a scheduler: save at the next optimizer step, and say so by the exit code.

Lightning ends with exit code 0 on SIGTERM, as if training were complete, and saves nothing new;
its SLURM handler saves in the middle of a batch.
"""

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint

from fourfold.callbacks.checkpoints import is_over, validates_now

EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: try again later
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
ASK_EVERY = 20  # optimizer steps between two questions to the other ranks, each of which is a wait


class Preemption(Checkpoint):
    """On SIGTERM, SIGUSR1 or Ctrl-C, writes last.ckpt after the optimizer step at hand and stops.

    A second Ctrl-C stops at once. It is a `Checkpoint` only so that Lightning calls it after all
    other callbacks.

    Args:
        last: Where training goes on from.

    Raises:
        SystemExit: Once all is saved, with code 75, or 130 after Ctrl-C.
    """

    def __init__(self, last: Path) -> None:
        self.last = last
        self.asked = 0  # the signal

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Listen, instead of Lightning, which puts the former handlers back in the end."""
        self.asked = 0
        if threading.current_thread() is threading.main_thread():  # others cannot hear
            for number in SIGNALS:
                signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = number

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save and stop, if asked and if no gradient is being accumulated.

        Not before a validation, which a resumed run would not make up for, and not at the end of
        the run, of which as little would be left undone for good.
        """
        if not validates_now(trainer):
            self._stop_if_asked(trainer, ASK_EVERY)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The same after a validation."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._stop_if_asked(trainer, 1)

    def _stop_if_asked(self, trainer: Trainer, every: int) -> None:
        if trainer.fit_loop.epoch_loop._should_accumulate() or is_over(trainer):
            return
        asked = bool(self.asked)
        if trainer.world_size > 1:
            # Not by batches: a window of 2, 4 or 5 of them would end at none that counts.
            if trainer.global_step % every:
                return
            asked = trainer.strategy.reduce_boolean_decision(asked, all=False)
        if asked:
            trainer.save_checkpoint(self.last)
            if trainer.is_global_zero:
                print(f"stopped by a signal after step {trainer.global_step:,}; run it again to go"
                      f" on from {self.last}", flush=True)  # fmt: skip
            raise SystemExit(130 if self.asked == signal.SIGINT else EXIT_CODE)
