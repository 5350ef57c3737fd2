"""Callbacks that every task adds to the Trainer, that of the command line or of a script."""

from lightning import Callback, Trainer

from fourfold.callbacks.checkpointing.exact_resume import ExactResume
from fourfold.callbacks.runtime.ddp_evaluation import DDPUnevenEvaluation
from fourfold.lightning_internals import log_completed_steps


def add_required_callbacks(trainer: Trainer) -> None:
    """Add the callbacks that exact resume and exact evaluation need, unless they are present.

    `ExactResume` comes before all other callbacks, because a checkpoint that one of them saves
    after a batch holds the position of this batch. All loggers receive the number of completed
    optimizer steps.
    """
    log_completed_steps(trainer)
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    for needed in (DDPUnevenEvaluation, ExactResume):
        if not any(isinstance(callback, needed) for callback in callbacks):
            callbacks.insert(0, needed())
    callbacks.sort(key=lambda callback: not isinstance(callback, ExactResume))
