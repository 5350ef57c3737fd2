"""Number of optimizer steps, which learning-rate schedules need, and attribute `lr` of tasks."""

from dataclasses import replace

from lightning import Trainer

from fourfold.errors import InputError
from fourfold.optim import OptimizerConfig
from fourfold.schedules import FINITE_SCHEDULES, ScheduleConfig


class TunableLearningRate:
    """Base class of an object whose attribute `optimizer` has the options of an optimizer."""

    optimizer: OptimizerConfig

    @property
    def lr(self) -> float:
        """Learning rate of the optimizer's options, which Lightning's Tuner may set."""
        return self.optimizer.lr

    @lr.setter
    def lr(self, value: float) -> None:
        self.optimizer = replace(self.optimizer, lr=value)


def total_optimizer_steps(trainer: Trainer, schedule: ScheduleConfig) -> int | None:
    """Compute the number of optimizer steps of the whole training; None for no limit.

    The number of batches comes from the DataModule, because `trainer.estimated_stepping_batches`
    would create a DataLoader and lose the restored position in the data. A plain
    LightningDataModule has no restored position, so its number comes from the Trainer.

    Raises:
        InputError: The schedule needs the number of steps, but the training has no end.
    """
    max_steps, epochs = int(trainer.max_steps), trainer.max_epochs or 0
    if epochs <= 0:
        if max_steps < 0 and schedule.total_steps is None and schedule.name in FINITE_SCHEDULES:
            raise InputError(
                f"must be given for a {schedule.name} schedule, or else trainer.max_steps or"
                " trainer.max_epochs",
                option="--model.schedule.total_steps",
            )
        return max_steps if max_steps > 0 else None
    count_batches = getattr(trainer.datamodule, "n_train_batches", None)  # type: ignore[attr-defined]
    if count_batches is None:
        return int(trainer.estimated_stepping_batches)
    limit, accumulation = trainer.limit_train_batches, trainer.accumulate_grad_batches
    return count_steps(count_batches(), limit, accumulation, epochs, max_steps)


def count_steps(
    batches: int, limit: float | int | None, accumulation: int, epochs: int, max_steps: int
) -> int:
    """Compute the number of optimizer steps of a training with a limited number of epochs.

    Args:
        batches: Number of micro-batches that each process takes in a complete epoch.
        limit: Lightning's `limit_train_batches`: the largest number (int) or the fraction (float)
            of these micro-batches that an epoch uses; None for all micro-batches.
        accumulation: Number of micro-batches in a step; the last step of an epoch may have fewer.
        epochs: Largest number of epochs.
        max_steps: Largest number of steps; -1 for no limit.

    Example:
        >>> count_steps(batches=10, limit=None, accumulation=4, epochs=2, max_steps=-1)
        6
    """
    if limit is not None:
        batches = min(batches, limit) if isinstance(limit, int) else int(batches * limit)
    steps = max(1, -(-batches // accumulation) * epochs)
    return min(max_steps, steps) if max_steps > 0 else steps
