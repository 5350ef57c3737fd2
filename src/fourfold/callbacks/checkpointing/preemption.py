"""Stopped by a scheduler: save at the next optimizer step, and say so by the exit code.

Lightning ends with exit code 0 on SIGTERM, as if training were complete, and saves nothing new;
its SLURM handler saves in the middle of a batch.
"""

import signal
import threading
from types import FrameType
from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.environments import LightningEnvironment

from fourfold.callbacks.checkpoints import Checkpoints, is_over, validates_now

EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: try again later
NAMES = ("SIGTERM", "SIGUSR1", "SIGINT")  # not every system has the second
SIGNALS = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))


class StopOnSignal(Callback):
    """On SIGTERM, SIGUSR1 or Ctrl-C, stops after the optimizer step at hand.

    Of several processes any may have heard the signal: it goes to the others with the number of
    targets, and all stop after the same step, the one at hand or the next. A second Ctrl-C stops at
    once. Needs a module with a `window`, as every task has.

    Raises:
        SystemExit: Once all is saved, with code 75, or 130 after Ctrl-C; of several processes only
            the first ends so, the others with 0.
    """

    def __init__(self) -> None:
        self.asked = 0  # the signal

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Forget what stopped an earlier training."""
        self.asked = 0

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Listen, instead of Lightning, which would broadcast from inside the signal's handler."""
        self._listen()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Listen from here on at the latest; Lightning puts the former handlers back in the end."""
        self._listen()

    def _listen(self) -> None:
        if threading.current_thread() is threading.main_thread():  # others cannot hear
            for number in SIGNALS:
                signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = number

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Have it told to the other processes."""
        pl_module.window.asked = bool(self.asked)  # type: ignore[union-attr]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save and stop, if asked and if no gradient is being accumulated.

        Not before a validation, which a resumed run would not make up for, and not at the end of
        the run, of which as little would be left undone for good.
        """
        accumulating = trainer.fit_loop.epoch_loop._should_accumulate()
        if accumulating or validates_now(trainer) or is_over(trainer):
            return
        alone = trainer.world_size == 1
        if self.asked if alone else pl_module.window.all_asked:  # type: ignore[union-attr]
            # What Lightning does next, and a run that goes on from here would not make up for.
            trainer._logger_connector.on_batch_end()
            trainer._logger_connector.update_train_step_metrics()
            self._stop(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The same after a validation."""
        if trainer.state.fn != "fit" or trainer.sanity_checking or is_over(trainer):
            return
        if trainer.fit_loop.epoch_loop._should_accumulate():
            return
        if trainer.strategy.reduce_boolean_decision(bool(self.asked), all=False):
            self._stop(trainer)

    def _stop(self, trainer: Trainer) -> None:
        then = self._save(trainer)
        if trainer.is_global_zero:
            print(f"stopped by a signal after step {trainer.global_step:,}; {then}", flush=True)
        if not _is_heard(trainer):
            raise SystemExit(0)
        raise SystemExit(130 if self.asked == signal.SIGINT else EXIT_CODE)

    def _save(self, trainer: Trainer) -> str:
        """Write what there is to be written, and say what of it."""
        return "nothing is saved, as was asked for"


class Preemption(StopOnSignal, Checkpoint):
    """Writes last.ckpt before it stops; a `Checkpoint` is called by Lightning after all others.

    Args:
        checkpoints: What writes it, where training goes on from.
    """

    def __init__(self, checkpoints: Checkpoints) -> None:
        super().__init__()
        self.checkpoints = checkpoints

    def _save(self, trainer: Trainer) -> str:
        self.checkpoints.save_last(trainer)
        return f"run it again to go on from {self.checkpoints.last}"


def _is_heard(trainer: Trainer) -> bool:
    """Whether this process's exit code is the one that is looked at.

    Whoever started the processes may kill all of them once one ends with another code than 0, and
    the first may still be closing its loggers.
    """
    environment = getattr(trainer.strategy, "cluster_environment", None)
    # There each node has a command of its own.
    first_of_node = isinstance(environment, LightningEnvironment)
    return trainer.local_rank == 0 if first_of_node else trainer.is_global_zero
