"""Intervals of shares and of differences between two models, and tests with many comparisons.

All intervals have 95 % confidence. Shapes: N items, P paradigms, S runs with different seeds.
"""

import math
import statistics
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist

import numpy as np

Z = NormalDist().inv_cdf(0.975)
LARGEST_EXACT = 24  # discordant pairs for which McNemar's test is exact
DRAWS = 10_000  # of the bootstrap


def share_interval(share: float, n: int) -> tuple[float, float]:
    """Return Wilson's interval of a share of n items (Wilson 1927).

    Example:
        >>> [round(bound, 4) for bound in share_interval(0.9, 10)]
        [0.5958, 0.9821]
    """
    half = math.sqrt(share * (1 - share) / n + (Z / n) ** 2 / 4) * Z
    centre = share + Z**2 / (2 * n)
    return (centre - half) / (1 + Z**2 / n), (centre + half) / (1 + Z**2 / n)


def mcnemar(n_first: int, n_second: int) -> float:
    """Return the p-value of McNemar's test (two-sided).

    The arguments are the numbers of items that only the first, or only the second model solves.

    Example:
        >>> mcnemar(1, 5)  # 2 * (1 + 6) / 2**6
        0.21875
    """
    n = n_first + n_second
    if n > LARGEST_EXACT:
        return math.erfc(abs(n_first - n_second) / math.sqrt(2 * n))
    tail = sum(math.comb(n, k) for k in range(min(n_first, n_second) + 1))
    return min(1.0, 2 * tail / 2**n)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values of a family of tests after Holm's correction (Holm 1979).

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values)
    scaled = np.arange(len(order), 0, -1) * np.take(p_values, order)
    return np.maximum.accumulate(scaled.clip(max=1.0))[order.argsort()].tolist()


@cache
def t_quantile(df: int) -> float:
    """Return the 97.5 % quantile of Student's t distribution with `df` degrees of freedom.

    Example:
        >>> [round(t_quantile(df), 3) for df in (1, 2, 4, 66)]
        [12.706, 4.303, 2.776, 1.997]
    """
    # With t = sqrt(df) tan(angle), the density of the angle is proportional to cos(angle)^(df - 1).
    angles = (np.arange(1_000_000) + 0.5) * (math.pi / 2e6)
    mass = np.cumsum(np.cos(angles) ** (df - 1))
    angle = np.interp(0.95 * mass[-1], mass, angles + math.pi / 4e6)  # at the ends of the steps
    return math.sqrt(df) * math.tan(angle)


def t_test(t: float, df: int) -> float:
    """Return the two-sided p-value of Student's t distribution with `df` degrees of freedom.

    Example:
        >>> [round(t_test(t, 9), 4) for t in (0.0, 2.262, -5.0)]
        [1.0, 0.05, 0.0007]
    """
    # With t = sqrt(df) tan(angle), the density of the angle is proportional to cos(angle)^(df - 1).
    start = math.atan(abs(t) / math.sqrt(df))
    width = (math.pi / 2 - start) / 100_000
    tail = np.sum(np.cos(start + width * (np.arange(100_000) + 0.5)) ** (df - 1)) * width
    beta = math.sqrt(math.pi) * math.exp(math.lgamma(df / 2) - math.lgamma((df + 1) / 2))
    return min(1.0, 2 * float(tail) / beta)


def standard_deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation (n - 1); NaN for one value, and if one is not finite."""
    # statistics.stdev raises AttributeError on infinities and NaN.
    is_defined = len(values) > 1 and all(map(math.isfinite, values))
    return statistics.stdev(values) if is_defined else math.nan


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the interval of the mean of two or more values, by Student's t distribution.

    Example:
        >>> [round(bound, 4) for bound in mean_interval([0.1, 0.2, 0.6])]
        [-0.3572, 0.9572]
    """
    n = len(values)
    half = t_quantile(n - 1) * standard_deviation(values) / math.sqrt(n)
    return statistics.fmean(values) - half, statistics.fmean(values) + half


def difference_intervals(
    first: np.ndarray, second: np.ndarray, paradigms: Sequence[np.ndarray]
) -> dict[str, tuple[float, float]]:
    """Return intervals of the mean of `second` - `first`, values (S, N) and (S', N) of items.

    The populations are "items"; "paradigms", by a bootstrap that also draws the runs of each model;
    and "runs", if there are several, by a t-test with equal variances. The items of a paradigm,
    whose indices `paradigms` has, are near copies of each other.
    """
    change, generator = second.mean(0) - first.mean(0), np.random.default_rng(0)
    mean, n, m = float(change.mean()), len(first), len(second)
    halves = {"items": Z * float(change.std()) / math.sqrt(len(change))}
    if n + m > 2:
        variances = n * first.mean(1).var(), m * second.mean(1).var()
        error = math.sqrt(sum(variances) / (n + m - 2) * (1 / n + 1 / m))
        halves["runs"] = t_quantile(n + m - 2) * error
    columns = generator.integers(len(paradigms), size=(DRAWS, len(paradigms)))
    means = []
    for values in (first, second):
        table = np.stack([values[:, items].mean(1) for items in paradigms], 1)  # (S, P)
        rows = generator.integers(len(table), size=(DRAWS, len(table)))
        means.append(np.take_along_axis(table[rows].mean(1), columns, 1).mean(1))
    low, high = np.quantile(means[1] - means[0], (0.025, 0.975)).tolist()
    return {name: (mean - x, mean + x) for name, x in halves.items()} | {"paradigms": (low, high)}
