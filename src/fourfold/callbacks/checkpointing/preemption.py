"""Preemption: callbacks that save a checkpoint and stop when the process receives a signal.

On SIGTERM, Lightning ends with exit code 0, as if training were complete, and saves no checkpoint.
Lightning's handler for SLURM saves in the middle of a batch. Both of Lightning's handlers
communicate with the other processes, which may not be ready to communicate at that moment. The
handlers of this module only store the signal. The callbacks act on the signal between two steps.
"""

import signal
from types import FrameType
from typing import Any, Literal

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.plugins.environments import LightningEnvironment

from fourfold.callbacks.checkpointing.run_checkpoints import (
    RunCheckpoints,
    is_last_batch_of_run,
    is_resumable,
)
from fourfold.lightning_internals import log_step_metrics, set_signal_handlers

EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: try again later
INTERRUPTED = 130  # a shell's exit code after Ctrl-C
# SIGUSR1 does not exist on Windows.
SIGNALS = {signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGUSR1", signal.SIGINT)}


class StopOnSignal(Callback):
    """Callback that stops after the current optimizer step on SIGTERM, SIGUSR1 or Ctrl-C.

    If any process receives the signal, all processes stop after the same step. The reason is that
    the all-reduce that sums the numbers of targets in each optimizer step also sums the requests to
    stop. A second Ctrl-C stops immediately. The LightningModule must have an attribute
    `loss_normalizer` (a `LossNormalizer`), as every task has.

    Args:
        checkpoints: Callback that writes last.ckpt before the stop; None saves nothing.

    Raises:
        SystemExit: When everything is saved, with exit code 130 after Ctrl-C and 75 after another
            signal. Only the process from which the launcher takes its exit code, usually the first
            process, ends with this code. The other processes end with 0.
    """

    def __init__(self, checkpoints: RunCheckpoints | None = None) -> None:
        self.checkpoints = checkpoints
        self.signal = 0  # number of the received signal

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Discard an earlier signal, and replace the handlers until Lightning restores them."""
        self.signal = 0
        if stage == "fit":
            set_signal_handlers(trainer, dict.fromkeys(SIGNALS, self._handle))

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = number

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        pl_module.loss_normalizer.stop_requested = bool(self.signal)  # type: ignore[union-attr]

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Save last.ckpt and stop, if a process received a signal and the step is complete.

        If a validation or the end of an epoch follows this batch, the stop waits for them, since a
        resumed run would skip them. After the last batch of the run the signal is ignored.
        """
        if is_last_batch_of_run(trainer) or not is_resumable(trainer, "batch"):
            return
        normalizer: Any = pl_module.loss_normalizer
        stops = self.signal if trainer.world_size == 1 else normalizer.stop_requested_anywhere
        if stops:
            log_step_metrics(trainer)  # Lightning would do so after this hook
            self._stop(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._stop_if_resumable(trainer, "validation")

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop_if_resumable(trainer, "epoch")

    def _stop_if_resumable(self, trainer: Trainer, hook: Literal["validation", "epoch"]) -> None:
        if is_last_batch_of_run(trainer) or not is_resumable(trainer, hook):
            return
        if trainer.strategy.reduce_boolean_decision(bool(self.signal), all=False):
            self._stop(trainer)

    def _stop(self, trainer: Trainer) -> None:
        hint = "no checkpoint is saved, since enable_checkpointing is false"
        if self.checkpoints is not None:
            self.checkpoints.save_last(trainer)
            self.checkpoints.wait()
            hint = f"run the same command again to resume from {self.checkpoints.last}"
        if trainer.is_global_zero:
            name = signal.Signals(self.signal).name if self.signal else "a signal"
            name = "Ctrl-C" if self.signal == signal.SIGINT else name
            print(f"stopped by {name} after step {trainer.global_step:,}; {hint}", flush=True)
        code = INTERRUPTED if self.signal == signal.SIGINT else EXIT_CODE
        # A launcher may kill all processes as soon as one of them ends with another code than 0,
        # although the first process may still be closing its loggers. With LightningEnvironment,
        # each node is started by a command of its own.
        environment = getattr(trainer.strategy, "cluster_environment", None)
        one_command_per_node = isinstance(environment, LightningEnvironment)
        reports = trainer.local_rank == 0 if one_command_per_node else trainer.is_global_zero
        raise SystemExit(code if reports else 0)


class SaveOnSignal(StopOnSignal, Checkpoint):
    """Callback that saves last.ckpt and stops on a signal, for runs with checkpoints.

    It derives from `Checkpoint`, because Lightning calls `Checkpoint` callbacks after all others.
    """
