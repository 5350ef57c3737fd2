"""Interleaved timings with progress, their ratios and ranges, and reference operations."""

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from fourfold.reproduce.interleaved_timing import Call, interleave

PRODUCT_FLOPS = {"cpu": 2**34, "cuda": 2**40}  # least number of FLOPs of `feed_forward_product`
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


def measure_rounds(
    title: str, functions: Mapping[str, Call], rounds: int, warm: int, device: torch.device
) -> dict[str, list[float]]:
    """Return the durations of functions in interleaved rounds, by name, and print each round.

    `warm` rounds before them are not measured.
    """
    seconds: dict[str, list[float]] = {name: [] for name in functions}

    def keep(durations: dict[str, float]) -> None:
        for name, value in durations.items():
            seconds[name].append(value)
        n_done = len(next(iter(seconds.values())))
        times = ", ".join(f"{name} {1000 * x:,.1f} ms" for name, x in durations.items())
        print(f"{title}, round {n_done} of {rounds}: {times}", file=sys.stderr, flush=True)

    interleave(functions, rounds, warm, device=device, after_round=keep)
    return seconds


def ratios(seconds: Mapping[str, Sequence[float]], base: str) -> dict[str, list[float]]:
    """Divide the seconds of each function by those of `base`, round by round."""
    return {
        name: [a / b for a, b in zip(values, seconds[base], strict=True)]
        for name, values in seconds.items()
    }


def feed_forward_product(
    n_tokens: int, d_model: int, d_ff: int, dtype: torch.dtype, device: torch.device
) -> tuple[Call, int]:
    """Return a function that multiplies matrices of a feed-forward layer, and its FLOPs.

    Its rate is the limit with which the rate of a training step is compared. The function repeats
    the product (n_tokens, d_model) x (d_model, d_ff) until it has `PRODUCT_FLOPS` FLOPs, since a
    single product of a small model is too short to be measured.
    """
    x = torch.randn(n_tokens, d_model, device=device, dtype=dtype)
    weight = torch.randn(d_model, d_ff, device=device, dtype=dtype)
    out = torch.empty(n_tokens, d_ff, device=device, dtype=dtype)
    flops = 2 * n_tokens * d_model * d_ff
    repeats = math.ceil(PRODUCT_FLOPS[device.type] / flops)

    def multiply() -> torch.Tensor:
        for _ in range(repeats):
            torch.mm(x, weight, out=out)
        return out

    return multiply, repeats * flops


def copying(device: torch.device) -> tuple[Call, int]:
    """Return a function that copies a large tensor, and the bytes that it reads and writes."""
    a = torch.ones(COPIED_BYTES[device.type], dtype=torch.uint8, device=device)
    out = torch.empty_like(a)
    return (lambda: out.copy_(a)), 2 * a.numel()
