"""Base classes of metrics (RowMetric, BatchSums), the metric Mean, and functions for metrics."""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchmetrics import Metric

from fourfold.errors import InputError


def lower_is_better(name: str) -> bool:
    """Return True if lower values of a metric are better.

    These are the metrics whose name begins with loss, ppl, error or nll.

    Args:
        name: Name of the metric, perhaps with a prefix, such as "val/loss".

    Example:
        >>> lower_is_better("val/loss"), lower_is_better("val/bleu")
        (True, False)
    """
    return name.rsplit("/", 1)[-1].startswith(("loss", "ppl", "error", "nll"))


def gather_objects(value: Any) -> list[Any]:
    """Gather a Python object from each rank, and return the list of objects in rank order."""
    if not (dist.is_available() and dist.is_initialized()):
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def stack_float64(first: Tensor, *others: Tensor | float) -> Tensor:
    """Stack scalars to a float64 vector, without waiting for the GPU.

    Args:
        first: First scalar, a Tensor, whose device the vector gets.
        others: The other scalars.

    Returns:
        Vector (n,) of all n scalars.
    """
    numbers = [
        x if isinstance(x, Tensor) else first.new_full((), x, dtype=torch.float64)
        for x in (first, *others)
    ]
    return torch.stack([x.detach().double() for x in numbers])


class RowMetric(Metric):
    """Base class of metrics that need the values of all examples of a split at once.

    Such values are texts, tags, answers or numbers. An example is usually stored as a pair (index
    of the example in the split, value). An example that several ranks have stored then counts once,
    and the score does not depend on the order of the examples.

    Attributes:
        rows: List of the examples that this rank has stored.
    """

    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Any] = []

    def reset(self) -> None:
        """Drop all stored examples."""
        super().reset()
        self.rows = []

    def gather(self) -> dict[Any, Any]:
        """Return a dict from the index of each example to its value, for the examples of all ranks.

        All entries of `rows` must be pairs (index, value).

        Raises:
            InputError: No rank has an example.
        """
        found = dict(row for rows in gather_objects(self.rows) for row in rows)
        if not found:
            raise InputError("has no example to score", option=type(self).__name__)
        return found


class BatchSums(Metric):
    """Sums of several numbers over the batches of all ranks, computed in float64.

    A float64 sum of float32 values is nearly always exact. The result then depends neither on the
    order of the batches nor on the number of devices. The sums are not metric states, because
    Lightning would convert metric states to bfloat16 with `precision: bf16-true`.

    Attributes:
        sums: Sum of each number over the batches of this rank; None before the first batch.
    """

    full_state_update = False
    sums: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.sums = None

    def update(self, first: Tensor, *others: Tensor | float) -> None:
        """Add the numbers of a batch to the sums.

        Args:
            first: First number, a scalar Tensor, on whose device the sums are kept.
            others: The other scalars, in the same order for each batch.
        """
        batch = stack_float64(first, *others)
        self.sums = batch if self.sums is None else self.sums + batch

    def compute(self) -> list[float]:
        """Return the sums over the batches of all ranks, in the order of the arguments of `update`.

        The list is empty if there was no batch.
        """
        sums = gather_objects(None if self.sums is None else self.sums.tolist())
        columns = zip(*(ours for ours in sums if ours is not None), strict=True)
        return [sum(column) for column in columns]

    def reset(self) -> None:
        """Set the sums to None."""
        super().reset()
        self.sums = None


class Mean(BatchSums):
    """Mean of a value over the examples or tokens of all batches and ranks.

    `update` takes two scalars, the sum of the value over a batch and the number of terms.

    Example:
        >>> loss = Mean()
        >>> loss.update(torch.tensor(6.0), 4)
        >>> loss.compute()
        1.5
    """

    def compute(self) -> float:  # type: ignore[override]
        """Return the mean; nan if there was no value."""
        total, count = super().compute() or (math.nan, 0.0)
        return total / count if count else math.nan
