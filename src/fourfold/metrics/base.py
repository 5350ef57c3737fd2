"""Base classes of metrics (RowMetric, BatchSums), the metric Mean, and functions for metrics."""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchmetrics import Metric

from fourfold.errors import InputError
from fourfold.losses import sum_dtype


def lower_is_better(name: str) -> bool:
    """Return True for names that, without "val/", begin with loss, ppl, error, nll or mae."""
    return name.rsplit("/", 1)[-1].startswith(("loss", "ppl", "error", "nll", "mae"))


def gather_objects(value: Any) -> list[Any]:
    """Gather a Python object from each rank, and return the list of objects in rank order."""
    if not (dist.is_available() and dist.is_initialized()):
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def stack_for_sum(first: Tensor, *others: Tensor | float) -> Tensor:
    """Stack scalars to a vector on the device of the first, in its `sum_dtype`, without waiting."""
    dtype = sum_dtype(first.device)
    numbers = [
        x if isinstance(x, Tensor) else first.new_full((), x, dtype=dtype) for x in (first, *others)
    ]
    return torch.stack([x.detach().to(dtype) for x in numbers])


class RowMetric(Metric):
    """Base class of metrics that need the values of all examples of a split at once.

    Such values are texts, tags, answers or numbers. An example is usually stored in the list `rows`
    as a pair (index of the example in the split, value). An example that several ranks have stored
    then counts once, and the score does not depend on the order of the examples.
    """

    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Any] = []

    def reset(self) -> None:
        super().reset()
        self.rows = []

    def gather(self) -> dict[Any, Any]:
        """Return the value of each example of all ranks by its index; at least one is needed."""
        found = dict(row for rows in gather_objects(self.rows) for row in rows)
        if not found:
            raise InputError("has no example to score", option=type(self).__name__)
        return found


class BatchSums(Metric):
    """Sums of several numbers over the batches of all ranks, computed in float64.

    A float64 sum of float32 values is nearly always exact. The result then depends neither on the
    order of the batches nor on the number of devices. The sums are not metric states, because
    Lightning would convert metric states to bfloat16 with `precision: bf16-true`.
    """

    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.sums: Tensor | None = None

    def update(self, first: Tensor, *others: Tensor | float) -> None:
        """Add the scalars of a batch, in the same order for each batch."""
        batch = stack_for_sum(first, *others)
        if batch.dtype != torch.float64:  # an Apple GPU; many batches need more digits than one
            batch = batch.cpu().double()
        self.sums = batch if self.sums is None else self.sums + batch

    def compute(self) -> list[float]:
        """Return the sums over the batches of all ranks, or an empty list if there was no batch."""
        sums = gather_objects(None if self.sums is None else self.sums.tolist())
        columns = zip(*(ours for ours in sums if ours is not None), strict=True)
        return [sum(column) for column in columns]

    def reset(self) -> None:
        super().reset()
        self.sums = None


class Mean(BatchSums):
    """Mean over the examples or tokens of all batches and ranks; nan without a value.

    `update` takes two scalars, the sum of the value over a batch and the number of terms.
    """

    def compute(self) -> float:  # type: ignore[override]
        total, count = super().compute() or (math.nan, 0.0)
        return total / count if count else math.nan
