"""How alike two columns of numbers are, or their orders."""

import math

import numpy as np


def ranks(values: np.ndarray) -> np.ndarray:
    """Rank of each of (N,) numbers from 1; equal ones share the mean of theirs."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    return ((last - counts + 1 + last) / 2)[which]


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Pearson's, of (N,) and (N,), and of ranks Spearman's; nan where one does not vary."""
    a, b = a - a.mean(), b - b.mean()
    norm = math.sqrt(float((a @ a) * (b @ b)))
    return float(a @ b) / norm if norm else math.nan
