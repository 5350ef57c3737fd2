"""Interleaved timing of several functions, so that their ratios are comparable.

The clock rate and the load of a machine change from minute to minute, while the ratio of two
measurements of the same round hardly does. All functions are therefore measured once per round in
random order, ratios are taken round by round, and results are reported as median and range.
"""

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

Call = Callable[[], object]
WARMUP_ROUNDS = 2
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


def interleave(
    functions: Mapping[str, Call],
    rounds: int,
    warm: int = WARMUP_ROUNDS,
    *,
    device: torch.device | None = None,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Measure several functions in interleaved rounds; return the seconds of each by name.

    Args:
        functions: Functions to measure, by name.
        rounds: Number of measured rounds. Each function is called once per round, in random order.
        warm: Number of unmeasured rounds before them.
        device: Device to synchronize before and after each call.
        seed: Seed of the random orders.
        clock: Function that returns the time in seconds.
    """
    orders = random.Random(seed)
    names = list(functions)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(warm + rounds):
        for name in orders.sample(names, len(names)):
            wait(device)
            start = clock()
            functions[name]()
            wait(device)
            if number >= warm:
                seconds[name].append(clock() - start)
    return seconds


def wait(device: torch.device | None) -> None:
    """Synchronize a CUDA device."""
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)


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
