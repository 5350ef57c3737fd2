"""Callback of kill_test.py that lets a training wait for a signal at a chosen moment."""

import os
import time
from pathlib import Path
from typing import Any

from lightning import Callback, LightningModule, Trainer


class Pause(Callback):
    """Callback that stops at the n-th time of a moment until a file is removed.

    The environment variable KILL_PLAN names the file, which holds the moment and the number n. The
    callback then creates a second file, NAME.reached. The training goes on after 60 seconds at the
    latest. Without the variable, the callback does nothing.
    """

    def __init__(self) -> None:
        self.count = 0

    def _pause(self, trainer: Trainer, moment: str) -> None:
        plan = Path(os.environ.get("KILL_PLAN", ""))
        if not trainer.is_global_zero or not plan.is_file():
            return
        chosen, number = plan.read_text(encoding="utf-8").rsplit(" ", 1)
        self.count += chosen == moment
        if self.count == int(number):
            plan.with_name(f"{plan.name}.reached").touch()
            until = time.monotonic() + 60
            while plan.is_file() and time.monotonic() < until:
                time.sleep(0.005)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if trainer.fit_loop.epoch_loop.batch_progress.is_last_batch:
            self._pause(trainer, "epoch end")

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, *_: Any
    ) -> None:
        if not trainer.sanity_checking:
            self._pause(trainer, "validation")
