"""Callbacks that save and stop when a scheduler or the user sends a signal.

On SIGTERM, Lightning ends with exit code 0, as if training were complete, and saves no checkpoint.
Its SLURM handler saves in the middle of a batch. Both broadcast from inside the signal handler,
where other processes may not join in. The handlers here only note the signal.
"""

import signal
import threading
from types import FrameType
from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.environments import LightningEnvironment

from fourfold.callbacks.checkpointing.run_checkpoints import (
    RunCheckpoints,
    is_last_batch_of_run,
    validation_follows,
)
from fourfold.lightning_internals import is_accumulating, log_step_metrics

EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: try again later
INTERRUPTED = 130  # a shell's exit code after Ctrl-C
SIGNAL_NAMES = ("SIGTERM", "SIGUSR1", "SIGINT")  # SIGUSR1 does not exist on Windows
SIGNALS = tuple(getattr(signal, name) for name in SIGNAL_NAMES if hasattr(signal, name))


class StopOnSignal(Callback):
    """Stops after the current optimizer step on SIGTERM, SIGUSR1 or Ctrl-C.

    Any of several processes may receive the signal. It reaches the others together with the number
    of targets of a step, and all stop after the same step. A second Ctrl-C stops immediately.
    Requires a module with a `loss_normalizer`, as every task has.

    Raises:
        SystemExit: When everything is saved, with code 75, or 130 after Ctrl-C. Only the first of
            several processes ends with this code, the others end with 0.
    """

    def __init__(self) -> None:
        self.signal = 0  # number of the received signal

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Forget the signal that stopped an earlier training."""
        self.signal = 0

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Replace Lightning's signal handlers."""
        self._install_handlers()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Replace Lightning's signal handlers, which it restores when training ends."""
        self._install_handlers()

    def _install_handlers(self) -> None:
        if threading.current_thread() is threading.main_thread():  # required by signal.signal
            for number in SIGNALS:
                signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Send a received signal to the other processes with the next optimizer step."""
        pl_module.loss_normalizer.stop_requested = bool(self.signal)  # type: ignore[union-attr]

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save and stop if a signal was received and no gradient is being accumulated.

        A resumed run would skip a validation that follows this batch, so the stop waits for it. At
        the end of the run there is nothing left to resume.
        """
        if is_accumulating(trainer) or validation_follows(trainer) or is_last_batch_of_run(trainer):
            return
        alone = trainer.world_size == 1
        normalizer: Any = pl_module.loss_normalizer
        stops = self.signal if alone else normalizer.stop_requested_anywhere
        if stops:
            log_step_metrics(trainer)  # Lightning would do so after this hook
            self._stop(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save and stop after a validation if a signal was received."""
        if trainer.state.fn != "fit" or trainer.sanity_checking or is_last_batch_of_run(trainer):
            return
        if is_accumulating(trainer):
            return
        if trainer.strategy.reduce_boolean_decision(bool(self.signal), all=False):
            self._stop(trainer)

    def _stop(self, trainer: Trainer) -> None:
        hint = self._save(trainer)
        if trainer.is_global_zero:
            print(f"stopped by a signal after step {trainer.global_step:,}; {hint}", flush=True)
        if not _reports_exit_code(trainer):
            raise SystemExit(0)
        raise SystemExit(INTERRUPTED if self.signal == signal.SIGINT else EXIT_CODE)

    def _save(self, trainer: Trainer) -> str:
        """Save a checkpoint, if there is one to save, and return what to tell the user."""
        return "no checkpoint is saved, since enable_checkpointing is false"


class SaveOnSignal(StopOnSignal, Checkpoint):
    """Writes last.ckpt before it stops.

    It derives from `Checkpoint` because Lightning calls those callbacks after all others.

    Args:
        checkpoints: The callback that writes last.ckpt.
    """

    def __init__(self, checkpoints: RunCheckpoints) -> None:
        super().__init__()
        self.checkpoints = checkpoints

    def _save(self, trainer: Trainer) -> str:
        self.checkpoints.save_last(trainer)
        return f"run the same command again to resume from {self.checkpoints.last}"


def _reports_exit_code(trainer: Trainer) -> bool:
    """Return True if the launcher looks at the exit code of this process.

    A launcher may kill all processes when one ends with another code than 0, while the first may
    still be closing its loggers.
    """
    environment = getattr(trainer.strategy, "cluster_environment", None)
    # With LightningEnvironment, each node is started by a command of its own.
    one_command_per_node = isinstance(environment, LightningEnvironment)
    return trainer.local_rank == 0 if one_command_per_node else trainer.is_global_zero
