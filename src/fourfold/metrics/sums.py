"""Sums over the batches of all ranks, in which the order of the batches cannot be seen."""

import math

import torch
from torch import Tensor
from torchmetrics import Metric

from fourfold.metrics.by_row import gather


class Sums(Metric):
    """Keeps the numbers of each batch until the end, when their exact sum is rounded once.

    Sums of sums would differ in the last digit from one number of devices to another.
    """

    full_state_update = False
    parts: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.parts = []

    def update(self, first: Tensor, *others: Tensor | float) -> None:
        """Add the numbers of a batch; the first is a Tensor and says on which device."""
        # Neither brought to the CPU nor copied from there, each of which waits for the device.
        numbers = [x if isinstance(x, Tensor) else first.new_full((), x, dtype=torch.float64)
                   for x in others]  # fmt: skip
        self.parts.append(torch.stack([x.detach().double() for x in (first, *numbers)]))

    def compute(self) -> list[float]:
        """The sum of each number."""
        mine = torch.stack(self.parts).tolist() if self.parts else []
        every = [row for part in gather(mine) for row in part]
        return [math.fsum(column) for column in zip(*every, strict=True)]

    def reset(self) -> None:
        """Forget all batches."""
        super().reset()
        self.parts = []


class Mean(Sums):
    """The mean of a value over all rows or tokens: `update` with its sum and their number."""

    def compute(self) -> float:  # type: ignore[override]
        """nan if there was none."""
        total, count = super().compute() or (math.nan, 0.0)
        return total / count if count else math.nan
