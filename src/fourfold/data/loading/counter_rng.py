"""Counter-based random bits, floats and integers: pure functions of seed, epoch and example.

A NumPy generator for each example would cost more time than the masking itself, and a generator for
each process would make the result depend on the number of workers. Here each number is a hash of
the seed, the epoch, the example and a counter. `rows` (B,) are indices of examples, and `stream` is
the index of an independent random sequence: a caller uses one for each kind of random choice.
"""

import numpy as np

# SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
_INCREMENT = np.uint64(0x9E3779B97F4A7C15)


def _mix(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def bits(seed: int, epoch: int, rows: np.ndarray, n: int, stream: int = 0) -> np.ndarray:
    """Generate `n` random 64-bit integers for each example, (B, n) uint64."""
    state = np.zeros(1, np.uint64)
    for value in (seed, stream, epoch):
        state = _mix((state ^ np.uint64(value)) + _INCREMENT)
    keys = _mix(state + (rows.astype(np.uint64) + np.uint64(1)) * _INCREMENT)  # (B,)
    counters = np.arange(1, n + 1, dtype=np.uint64) * _INCREMENT
    return _mix(_mix(keys)[:, None] + counters)  # (B, n)


def unit(bits: np.ndarray) -> np.ndarray:
    """Convert random 64-bit integers to float64 numbers in [0, 1), in the same shape."""
    return (bits >> np.uint64(11)) * 2.0**-53


def uniform(seed: int, epoch: int, rows: np.ndarray, n: int, stream: int = 0) -> np.ndarray:
    """Generate `n` random float64 numbers in [0, 1) for each example, (B, n)."""
    return unit(bits(seed, epoch, rows, n, stream))


def integers(
    seed: int, epoch: int, rows: np.ndarray, high: np.ndarray | int, stream: int = 0
) -> np.ndarray:
    """Generate one random int64 in [0, high) for each example, (B,)."""
    return (uniform(seed, epoch, rows, 1, stream)[:, 0] * high).astype(np.int64)
