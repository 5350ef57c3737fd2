"""Whether rows come out in the paper's order: Spearman's rank correlation, and how sure it is.

Of 2 x R numbers, R rows of a column: the paper's and the means over seeds here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fourfold.metrics.correlation import correlation, ranks
from fourfold.papers.cells import Cell
from fourfold.papers.tables import Printed, Table

FEWEST = 4  # of fewer rows an order says nothing
DRAWS = 10_000


@dataclass(frozen=True)
class Order:
    """How the rows of a column are ordered here and in the paper.

    Args:
        column: Its title.
        rows: How many rows were compared.
        rho: Spearman's rank correlation; nan where all are equal.
        low: 2.5 % of what it is when rows are drawn again with replacement (bootstrap).
        high: 97.5 % of it.
        p: How often shuffled rows correlate as much or more (permutation, one-sided).
    """

    column: str
    rows: int
    rho: float
    low: float
    high: float
    p: float

    def sentence(self) -> str:
        """For a page."""
        return (
            f"Order of {self.rows} rows by {self.column}, Spearman's rank correlation with the"
            f" paper's: {self.rho:.2f} (bootstrap over rows, 95 %: {self.low:.2f} to"
            f" {self.high:.2f}; permutation, one-sided: p = {self.p:.4f})."
        )


def compare_orders(table: Table, cells: Sequence[Cell]) -> list[Order]:
    """For each column with enough rows that are both printed and measured, and not all equal."""
    found = []
    for name, column in table.columns.items():
        pairs = [
            (Printed(cell.printed).number, cell.mean)
            for cell in cells
            if cell.column == name and cell.verdict == "measured" and cell.printed is not None
        ]
        known = [(a, b) for a, b in pairs if a is not None and b is not None]
        if len(known) >= FEWEST and all(len(set(side)) > 1 for side in zip(*known, strict=True)):
            found.append(order(column.title, np.array(known)))
    return found


def order(title: str, pairs: np.ndarray) -> Order:
    """The order of pairs (R, 2): the paper's number, ours."""
    rng = np.random.default_rng(0)
    paper, ours = ranks(pairs[:, 0]), ranks(pairs[:, 1])
    rho = correlation(paper, ours)
    shuffled = [correlation(paper, rng.permutation(ours)) for _ in range(DRAWS)]
    p = (1 + sum(x >= rho - 1e-12 for x in shuffled)) / (DRAWS + 1)
    drawn = []
    for _ in range(DRAWS):
        again = pairs[rng.integers(len(pairs), size=len(pairs))]
        drawn.append(correlation(ranks(again[:, 0]), ranks(again[:, 1])))
    low, high = np.nanpercentile(drawn, [2.5, 97.5]) if not math.isnan(rho) else (rho, rho)
    return Order(title, len(pairs), rho, float(low), float(high), float(p))
