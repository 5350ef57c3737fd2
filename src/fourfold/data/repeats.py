"""Repeated augmentation: the images of an epoch come several times, each time changed otherwise."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from fourfold.data.sampler import Plan

TOGETHER = 16  # different rows that are dealt out, each as often as it comes, before the next ones


class RepeatedPlan(Plan):
    """A `Plan` of equally long rows each of which, if it comes in an epoch, comes several times.

    An epoch is no longer than any other: it has one in `repeats` of the rows, drawn anew each time.
    All copies of a row fall into one global batch but for those at its border, and none stands
    beside its like, where mixing would pair it with itself. Hoffer et al. 2020 (arXiv:1901.09335),
    Berman et al. 2019 (arXiv:1902.05509); DeiT has three (Touvron et al. 2020, Table 9).

    Args:
        n_rows: N.
        repeats: how often a row comes; copy k of row i has the number i + k N.
        more: of a `Plan`.
    """

    def __init__(self, n_rows: int, repeats: int, **more: Any) -> None:
        super().__init__(np.ones(n_rows), **more)
        self.repeats = repeats

    def _shuffled(self, rng: np.random.Generator) -> np.ndarray:
        n_chosen = -(-self.n_rows // self.repeats)
        # An even number, so that no two neighbours are of different copies.
        n_chosen += n_chosen % 2 if self.repeats > 1 else 0
        chosen = rng.permutation(self.n_rows)[:n_chosen]
        copy, place = np.divmod(np.arange(self.repeats * len(chosen)), len(chosen))
        order = np.lexsort((rng.random(len(place)), copy, place // TOGETHER))
        return (chosen[place] + copy * self.n_rows)[order][: self.n_rows]

    def fingerprint(self) -> str:
        """Equal for equal plans: what a checkpoint compares before it resumes inside one."""
        said = f"{super().fingerprint()} {self.repeats}"
        return hashlib.blake2b(said.encode(), digest_size=8).hexdigest()
