"""How many steps a run will take, for the schedules that must know."""

from lightning import Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from fourfold.core.errors import InputError
from fourfold.schedules import ENDING, ScheduleConfig


def optimizer_steps(trainer: Trainer, schedule: ScheduleConfig) -> int | None:
    """Optimizer steps of the whole run, from the data's own count of batches; None without an end.

    `trainer.estimated_stepping_batches` would build a loader and drop its resumed state.

    Raises:
        InputError: No steps are wanted, or the schedule needs the end of a run that has none.
    """
    most, epochs = trainer.max_steps, trainer.max_epochs or 0
    if most == 0:
        raise InputError("trainer.max_steps is 0: there is nothing to train; -1 means no limit")
    if epochs <= 0:
        unknown = most <= 0 and schedule.total_steps is None
        if unknown and schedule.name in ENDING:
            raise InputError(
                f"a {schedule.name} schedule must know where it ends: give"
                " schedule.total_steps, trainer.max_steps or trainer.max_epochs"
            )
        return int(most) if most > 0 else None
    batches = trainer.datamodule.n_train_batches()  # type: ignore[attr-defined]
    return steps_of(
        batches, trainer.limit_train_batches, trainer.accumulate_grad_batches, epochs, int(most)
    )


def steps_of(
    batches: int, limit: float | int | None, accumulation: int, epochs: int, most: int
) -> int:
    """Optimizer steps of a run whose epochs end.

    Args:
        batches: Micro-batches of an epoch.
        limit: How many of them are taken at most, or which share; None for all.
        accumulation: Micro-batches of a step; the last of an epoch may have fewer.
        epochs: Most epochs.
        most: Most steps; -1 for no limit.
    """
    if limit is not None:
        batches = min(batches, limit) if isinstance(limit, int) else int(batches * limit)
    ends = max(1, -(-batches // accumulation) * epochs)
    return min(most, ends) if most > 0 else ends


def warn_of_warm_up(schedule: ScheduleConfig, steps: int | None) -> None:
    """Say so if a run of so many optimizer steps ends before its learning rate has come down.

    As where the warm-up of a larger data set is left in a config.
    """
    if steps is not None and schedule.warmup_steps >= max(2, steps):
        rank_zero_warn(
            f"schedule.warmup_steps is {schedule.warmup_steps:,}, but the run has {steps:,} steps:"
            " its learning rate only grows"
        )
