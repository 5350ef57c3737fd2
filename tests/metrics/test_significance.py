"""Intervals and tests: values computed by hand or by SciPy, coverage, and limits."""

import math

import numpy as np
import pytest

from fourfold.metrics.significance import (
    Z,
    difference_intervals,
    holm,
    mcnemar,
    share_interval,
    t_quantile,
)

stats = pytest.importorskip("scipy.stats")


@pytest.mark.parametrize(("b", "c"), [(0, 0), (1, 5), (7, 7), (3, 21), (24, 0), (0, 3)])
def test_mcnemar_is_exact_for_few_discordant_pairs(b: int, c: int) -> None:
    expected = stats.binomtest(b, b + c).pvalue if b + c else 1.0
    assert mcnemar(b, c) == pytest.approx(expected)
    assert mcnemar(c, b) == mcnemar(b, c)


def test_mcnemar_is_normal_for_many() -> None:
    assert mcnemar(60, 40) == pytest.approx(2 * stats.norm.sf(2.0))  # z = 20 / sqrt(100)
    assert mcnemar(50, 50) == 1.0
    assert mcnemar(25, 0) == pytest.approx(2 * stats.norm.sf(5.0))


def test_holm_by_hand() -> None:
    # 4 * 0.01, then 3 * 0.012 = 0.036 < 0.04, 2 * 0.03 and 0.9.
    assert holm([0.03, 0.01, 0.9, 0.012]) == pytest.approx([0.06, 0.04, 0.9, 0.04])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []
    # 67 tests: the first step is p < 0.05 / 67, |z| of about 3.4.
    p = [mcnemar(0, 100)] + [1.0] * 66
    assert holm(p)[0] == pytest.approx(67 * p[0])
    assert stats.norm.isf(0.05 / 67 / 2) == pytest.approx(3.37, abs=0.05)


@pytest.mark.parametrize("df", [1, 2, 3, 4, 7, 66])
def test_t_quantiles(df: int) -> None:
    assert t_quantile(df) == pytest.approx(stats.t.ppf(0.975, df), rel=1e-4)


@pytest.mark.parametrize(("k", "n"), [(0, 10), (9, 10), (1000, 1000), (512, 1000)])
def test_wilsons_interval(k: int, n: int) -> None:
    expected = stats.binomtest(k, n).proportion_ci(method="wilson")
    assert share_interval(k / n, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_the_item_interval_of_pairs_is_that_of_mcnemar() -> None:
    # 67,000 items, of which 20 % are discordant: half-width 0.34 points.
    n, b = 67_000, 6_700
    first, second = np.zeros((1, n)), np.zeros((1, n))
    first[0, :b], second[0, b : 2 * b] = 100.0, 100.0
    low, high = difference_intervals(first, second, [np.arange(n)])["items"]
    assert high == pytest.approx(100 * Z * math.sqrt(2 * b) / n)
    assert high == pytest.approx(0.34, abs=0.005)
    assert low == -high


def test_the_run_interval_of_3_and_3_runs() -> None:
    # Equal variances s**2: half-width 2.776 s sqrt(2 / 3).
    first, second = np.array([[1.0], [2.0], [3.0]]), np.array([[4.0], [5.0], [6.0]])
    found = difference_intervals(first, second, [np.arange(1)])
    low, high = found["runs"]
    assert (high - low) / 2 == pytest.approx(2.776 * math.sqrt(2 / 3), abs=1e-3)
    assert (high + low) / 2 == pytest.approx(3.0)
    expected = stats.ttest_ind(second[:, 0], first[:, 0]).confidence_interval(0.95)
    assert found["runs"] == pytest.approx((expected.low, expected.high), rel=1e-4)
    assert "runs" not in difference_intervals(first[:1], second[:1], [np.arange(1)])


def test_the_paradigm_interval_is_that_of_a_mean_over_paradigms() -> None:
    generator = np.random.default_rng(1)
    n_paradigms, n = 67, 20
    paradigms = [np.arange(i * n, (i + 1) * n) for i in range(n_paradigms)]
    effect = generator.normal(5.0, 10.0, n_paradigms)
    first = generator.normal(size=(1, n_paradigms * n))
    second = first + np.repeat(effect, n)
    low, high = difference_intervals(first, second, paradigms)["paradigms"]
    half = stats.t.ppf(0.975, 66) * effect.std(ddof=1) / math.sqrt(n_paradigms)
    assert (high - low) / 2 == pytest.approx(half, rel=0.05)
    assert (high + low) / 2 == pytest.approx(effect.mean(), abs=0.1 * half)
    # Runs that differ widen it.
    noise = generator.normal(scale=10.0, size=(3, 1))
    wide = difference_intervals(first.repeat(3, 0), second.repeat(3, 0) + noise, paradigms)
    assert wide["paradigms"][1] - wide["paradigms"][0] > 1.5 * (high - low)
