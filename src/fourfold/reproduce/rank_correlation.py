"""Spearman's rank correlation between printed and measured numbers, with a bootstrap interval.

The correlation shows to what extent our measurements order the rows of a table as the paper does.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fourfold.reproduce.cells import Cell
from fourfold.reproduce.tables import Table

MIN_ROWS = 4  # with fewer rows a rank correlation has no meaning
RESAMPLES = 10_000


@dataclass(frozen=True)
class RankCorrelation:
    """Rank correlation between the printed and the measured numbers of a column."""

    column: str  # title
    rows: int  # number of compared rows of the table
    rho: float  # Spearman's; nan if all printed or all measured numbers are equal
    low: float  # ends of the 95 % bootstrap interval, for rows drawn with replacement
    high: float
    p: float  # one-sided, of a permutation test

    def sentence(self) -> str:
        """Describe the correlation in one sentence for the page of the table."""
        return (
            f"Order of {self.rows} rows by {self.column}, Spearman's rank correlation with the"
            f" paper's: {self.rho:.2f} (bootstrap over rows, 95 %: {self.low:.2f} to"
            f" {self.high:.2f}; permutation, one-sided: p = {self.p:.4f})."
        )


def compare_orders(table: Table, cells: Sequence[Cell]) -> list[RankCorrelation]:
    """Compute the rank correlation between printed and measured numbers, column by column.

    A column is left out if fewer than MIN_ROWS rows have both numbers, or if all printed or all
    measured numbers are equal.
    """
    correlations = []
    for name, column in table.columns.items():
        known = [
            (cell.printed_number, cell.mean)
            for cell in cells
            if cell.column == name and cell.seeds
            if cell.printed_number is not None and cell.mean is not None
        ]
        if len(known) >= MIN_ROWS and all(len(set(side)) > 1 for side in zip(*known, strict=True)):
            correlations.append(rank_correlation(column.title, np.array(known)))
    return correlations


def rank_correlation(title: str, pairs: np.ndarray) -> RankCorrelation:
    """Compute the rank correlation of one column from (R, 2) printed and measured numbers."""
    rng = np.random.default_rng(0)
    paper, ours = ranks(pairs.T)
    rho = float(correlation(paper, ours))
    shuffled = correlation(paper, np.stack([rng.permutation(ours) for _ in range(RESAMPLES)]))
    p = (1 + (shuffled >= rho - 1e-12).sum()) / (RESAMPLES + 1)
    samples = pairs.T[:, rng.integers(len(pairs), size=(RESAMPLES, len(pairs)))]
    low, high = (
        np.nanpercentile(correlation(*ranks(samples)), [2.5, 97.5]) if rho == rho else [rho] * 2
    )
    return RankCorrelation(title, len(pairs), rho, float(low), float(high), float(p))


def ranks(values: np.ndarray) -> np.ndarray:
    """Return the ranks (..., N) of numbers (..., N) as float64, along the last dimension.

    The smallest number has rank 1. Equal numbers get the mean of their ranks.
    """
    a, b = values[..., None], values[..., None, :]
    return (a > b).sum(-1) + ((a == b).sum(-1) + 1) / 2


def correlation(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return Pearson's correlation (...) of arrays (..., N); nan where an array is constant."""
    a, b = (x - x.mean(-1, keepdims=True) for x in (a, b))
    with np.errstate(invalid="ignore"):
        return (a * b).sum(-1) / np.sqrt((a * a).sum(-1) * (b * b).sum(-1))
