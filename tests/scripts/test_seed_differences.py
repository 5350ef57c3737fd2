"""Tests of scripts/seed_differences.py."""

import pytest
from scipy.stats import ttest_rel

from scripts.seed_differences import differences


def test_intervals_equal_those_of_the_paired_t_test() -> None:
    values = {"base": [26.1, 25.2, 27.4], "other": [27.0, 26.9, 27.7], "one": [9.0]}
    cells = [
        {"column": "bleu", "row": row, "seeds": list(range(len(given))), "values": given}
        for row, given in values.items()
    ]
    cells.append({"column": "bleu", "row": "not run", "seeds": [], "values": []})
    ((column, row, base, n_seeds, difference, low, high),) = differences(cells, "base")
    assert (column, row, base, n_seeds) == ("bleu", "other", "base", 3)
    expected = ttest_rel(values["other"], values["base"])
    assert difference == pytest.approx(sum(values["other"]) / 3 - sum(values["base"]) / 3, abs=1e-3)
    interval = expected.confidence_interval(0.95)
    assert (low, high) == pytest.approx((interval.low, interval.high), abs=1e-3)
