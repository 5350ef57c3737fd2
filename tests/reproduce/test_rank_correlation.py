import math

import numpy as np
import pytest

from fourfold.reproduce.cells import run_cell
from fourfold.reproduce.load_tables import find_tables
from fourfold.reproduce.rank_correlation import compare_orders, correlation, rank_correlation, ranks


def test_ranks_and_correlation_are_scipys() -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(1)
    for _ in range(20):
        pairs = rng.integers(0, 6, (12, 2)).astype(float)  # with equal ones
        assert ranks(pairs[:, 0]) == pytest.approx(stats.rankdata(pairs[:, 0]))
        found = correlation(ranks(pairs[:, 0]), ranks(pairs[:, 1]))
        assert found == pytest.approx(stats.spearmanr(pairs).statistic)


def test_one_order_its_reverse_and_none() -> None:
    up = np.arange(12.0)
    same = rank_correlation("x", np.stack([up, up**3], 1))
    assert (same.rho, same.rows) == (pytest.approx(1.0), 12)
    assert same.p < 0.001
    assert (same.low, same.high) == (pytest.approx(1.0), pytest.approx(1.0))
    reverse = rank_correlation("x", np.stack([up, -up], 1))
    assert reverse.rho == pytest.approx(-1.0)
    assert reverse.p > 0.99
    noise = rank_correlation("x", np.stack([up, np.random.default_rng(3).permutation(up)], 1))
    assert noise.low < noise.rho < noise.high
    assert "Spearman" in noise.sentence()
    assert math.isnan(rank_correlation("x", np.stack([up, np.ones(12)], 1)).rho)


def test_p_is_the_share_of_shufflings() -> None:
    # Of the 24 orders of 4, only one is the paper's.
    found = rank_correlation("x", np.stack([np.arange(4.0)] * 2, 1))
    assert found.p == pytest.approx(1 / 24, abs=0.008)


def test_only_rows_that_were_run_are_compared() -> None:
    (table,) = find_tables(["vaswani2017/table3"])
    cells = []
    for number, (row, column) in enumerate(table.cells("laptop")):
        metrics = {0: {"m": number / 10}, 1: {"m": number / 10 + 1}} if number < 12 else {}
        cells.append(run_cell(table, row, column, "m", metrics))
    found = compare_orders(table, cells)
    assert [(o.column, o.rows) for o in found] == [("perplexity (dev)", 6), ("BLEU (dev)", 6)]
    assert compare_orders(table, cells[:6]) == []
