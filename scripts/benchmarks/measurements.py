"""Ratios and ranges of interleaved timings, and reference operations of a device."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from fourfold.reproduce.interleaved_timing import Call

SIDE = {"cpu": 2048, "cuda": 8192}  # of the square matrices in `matrix_product`
COPIED_BYTES = {"cpu": 2**28, "cuda": 2**31}  # larger than any cache


@dataclass(frozen=True)
class Spread:
    """Median, minimum and maximum of several measurements."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(statistics.median(values), min(values), max(values))

    def text(self, factor: float = 1.0, digits: int = 2) -> str:
        """Format as `median [least, greatest]`."""
        numbers = [f"{factor * x:,.{digits}f}" for x in (self.median, self.least, self.greatest)]
        return f"{numbers[0]} [{numbers[1]}, {numbers[2]}]"


def ratios(seconds: Mapping[str, Sequence[float]], base: str) -> dict[str, list[float]]:
    """Divide the seconds of each function by those of `base`, round by round."""
    return {
        name: [a / b for a, b in zip(values, seconds[base], strict=True)]
        for name, values in seconds.items()
    }


def matrix_product(dtype: torch.dtype, device: torch.device) -> tuple[Call, int]:
    """Return a function that multiplies square matrices, and its FLOPs.

    Its rate is the limit against which the rate of a training step is compared.
    """
    side = SIDE[device.type]
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    return (lambda: torch.mm(a, b, out=out)), 2 * side**3


def copying(device: torch.device) -> tuple[Call, int]:
    """Return a function that copies a large tensor, and the bytes that it reads and writes."""
    a = torch.ones(COPIED_BYTES[device.type], dtype=torch.uint8, device=device)
    out = torch.empty_like(a)
    return (lambda: out.copy_(a)), 2 * a.numel()
