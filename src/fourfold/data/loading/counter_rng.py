"""Random numbers that are a pure function of (seed, epoch, row): for masks and crops.

A generator per row would cost more than the masking; a generator per process would tie the result
to the number of workers. A counter put through a mixing function needs neither.
"""

from __future__ import annotations

import numpy as np

# SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def _mix(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))


def bits(seed: int, epoch: int, rows: np.ndarray, n: int, stream: int = 0) -> np.ndarray:
    """Random bits, `n` numbers for each row.

    Args:
        seed: the same seed gives the same numbers.
        epoch: number of the epoch.
        rows: (B,) row numbers.
        n: numbers a row.
        stream: different streams are independent.

    Returns:
        (B, n) uint64.
    """
    state = np.zeros(1, np.uint64)
    for part in (seed, stream, epoch):
        state = _mix((state ^ np.uint64(part)) + _STEP)
    keys = _mix(state + (rows.astype(np.uint64) + np.uint64(1)) * _STEP)  # (B,)
    counters = np.arange(1, n + 1, dtype=np.uint64) * _STEP
    return _mix(_mix(keys)[:, None] + counters)  # (B, n)


def unit(bits: np.ndarray) -> np.ndarray:
    """Random bits as numbers in [0, 1), float64."""
    return (bits >> np.uint64(11)) * 2.0**-53


def uniform(seed: int, epoch: int, rows: np.ndarray, n: int, stream: int = 0) -> np.ndarray:
    """Numbers in [0, 1), (B, n) float64; arguments as `bits`."""
    return unit(bits(seed, epoch, rows, n, stream))


def integers(
    seed: int, epoch: int, rows: np.ndarray, high: np.ndarray | int, stream: int = 0
) -> np.ndarray:
    """One whole number in [0, high) for each row, (B,) int64."""
    return (uniform(seed, epoch, rows, 1, stream)[:, 0] * high).astype(np.int64)
