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
        numbers = [torch.as_tensor(x, dtype=torch.float64).to(first.device) for x in others]
        # No number is brought to the CPU here, which would have to wait for the device.
        self.parts.append(torch.stack([first.detach().double(), *numbers]).detach())

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
