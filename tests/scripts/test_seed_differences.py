"""Tests of scripts/seed_differences.py."""

import pytest
from scipy.stats import ttest_rel

from scripts.seed_differences import at_equal_time, differences


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


def test_rows_are_compared_with_the_base_on_the_line_of_its_steps() -> None:
    values = {
        "base": [10.0, 12.0],
        "longer": [9.0, 11.5],
        "slow": [9.0, 11.0],
        "fast": [10.0, 12.0],
    }
    cells = [
        {"column": column, "row": row, "seeds": [0, 1], "values": given}
        for row, given in values.items()
        for column in ("causal", "bleu")
    ]
    speeds = {"base causal": 100.0, "longer causal": 100.0, "slow causal": 80.0}
    speeds["fast causal"] = 200.0
    shifted = at_equal_time(cells, "base", "longer", 1.25, speeds)
    found = {cell["row"]: cell["values"] for cell in shifted if cell["column"] == "causal"}
    assert [cell["column"] for cell in shifted] == ["causal"] * 3
    # Steps of "slow" take 1.25 times as long, so the base reaches the values of "longer".
    assert [a - b for a, b in zip(found["slow"], found["base"], strict=True)] == [0.0, -0.5]
    assert found["fast"] == [10.0 - 2.0, 12.0 - 1.0]
