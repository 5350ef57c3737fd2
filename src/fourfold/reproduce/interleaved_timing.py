"""Interleaved timing of several functions, for accurate ratios of their durations.

The clock rate and the load of a machine change from minute to minute, and durations change with
them. The ratio of two durations that are measured in the same round hardly changes. Each round
therefore measures all functions once, in random order, so that ratios can be taken round by round.
"""

import random
import time
from collections.abc import Callable, Mapping

import torch

Call = Callable[[], object]
WARMUP_ROUNDS = 2


def interleave(
    functions: Mapping[str, Call],
    rounds: int,
    warm: int = WARMUP_ROUNDS,
    *,
    device: torch.device | None = None,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
    after_round: Callable[[dict[str, float]], object] | None = None,
) -> dict[str, list[float]]:
    """Measure the seconds of several functions in interleaved rounds, after `warm` other rounds.

    A CUDA device is synchronized before and after each call. `after_round` receives the durations
    of each measured round by name.
    """
    orders = random.Random(seed)
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for number in range(warm + rounds):
        durations = {}
        for name in orders.sample(list(functions), len(functions)):
            wait(device)
            start = clock()
            functions[name]()
            wait(device)
            durations[name] = clock() - start
        if number >= warm:
            for name in functions:
                seconds[name].append(durations[name])
            if after_round is not None:
                after_round(durations)
    return seconds


def wait(device: torch.device | None) -> None:
    """Wait until a CUDA device has finished its work; do nothing for other devices and None."""
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
