"""Time that can be compared: ways take turns in one run, in another order each round.

A laptop's clock rate, a neighbour's load and a warm cache change from minute to minute; a ratio of
two steps of the same round hardly does. So ratios are taken round by round, and what is shown is
their median with the least and the greatest.
"""

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

Call = Callable[[], object]
WARM = 2  # rounds that are not counted
SIDE = {"cpu": 2048, "cuda": 8192}  # of the square matrices whose product is the measure
COPIED = {"cpu": 2**28, "cuda": 2**31}  # bytes: more than any cache holds


@dataclass(frozen=True)
class Spread:
    """Of several measurements: the middle, the least and the greatest."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(statistics.median(values), min(values), max(values))

    def text(self, factor: float = 1.0, digits: int = 2) -> str:
        """As `median [least, greatest]`."""
        found = [f"{factor * x:,.{digits}f}" for x in (self.median, self.least, self.greatest)]
        return f"{found[0]} [{found[1]}, {found[2]}]"


def interleave(
    ways: Mapping[str, Call],
    rounds: int,
    warm: int = WARM,
    *,
    device: torch.device | None = None,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each way in each round.

    Args:
        ways: What is measured, by name.
        rounds: How often; in each, every way has one turn, in an order drawn for it.
        warm: Rounds before those, which are not counted.
        device: Whose work a turn waits for.
        seed: Of the orders.
        clock: What tells the time.
    """
    orders, names = random.Random(seed), list(ways)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(warm + rounds):
        for name in orders.sample(names, len(names)):
            wait(device)
            began = clock()
            ways[name]()
            wait(device)
            if number >= warm:
                seconds[name].append(clock() - began)
    return seconds


def wait(device: torch.device | None) -> None:
    """Until a GPU has done what it was given."""
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)


def ratios(seconds: Mapping[str, Sequence[float]], base: str) -> dict[str, list[float]]:
    """Each way's time by that of `base`, round by round."""
    return {
        name: [a / b for a, b in zip(found, seconds[base], strict=True)]
        for name, found in seconds.items()
    }


def matrix_product(dtype: torch.dtype, device: torch.device) -> tuple[Call, int]:
    """A square matrix product, and its FLOPs: the most that a step of the same run could reach."""
    side = SIDE[device.type]
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    return (lambda: torch.mm(a, b, out=out)), 2 * side**3


def copying(device: torch.device) -> tuple[Call, int]:
    """A copy of a large block of memory, and the bytes it reads and writes."""
    a = torch.ones(COPIED[device.type], dtype=torch.uint8, device=device)
    out = torch.empty_like(a)
    return (lambda: out.copy_(a)), 2 * a.numel()
