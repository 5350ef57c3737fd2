"""Rows of different lengths in two flat arrays: a corpus without a Python object a sentence.

Legend: B rows, T longest row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Ragged:
    """Row i is `ids[offsets[i] : offsets[i + 1]]`.

    Args:
        ids: all rows, one after the other.
        offsets: where rows begin, and at the end the number of ids.
    """

    ids: np.ndarray
    offsets: np.ndarray

    @classmethod
    def from_lengths(cls, ids: np.ndarray, lengths: np.ndarray) -> Ragged:
        """Rows of the given lengths."""
        return cls(ids, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        return self.ids[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """Ids of each row."""
        return np.diff(self.offsets)

    def _gather(self, begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The ids of stretches of the flat array, one after the other."""
        first = np.cumsum(lengths) - lengths
        steps = np.arange(int(lengths.sum())) - np.repeat(first, lengths)
        return self.ids[np.repeat(begins, lengths) + steps]

    def take(self, rows: np.ndarray) -> Ragged:
        """The given rows, in the given order."""
        lengths = self.lengths[rows]
        return Ragged.from_lengths(self._gather(self.offsets[:-1][rows], lengths), lengths)

    def truncate(self, max_len: int | np.ndarray) -> Ragged:
        """Every row cut to its first `max_len` ids, or each to a number of its own."""
        lengths = np.minimum(self.lengths, max_len)
        return Ragged.from_lengths(self._gather(self.offsets[:-1], lengths), lengths)

    def wrap(self, before: int | None = None, after: int | None = None) -> Ragged:
        """Every row with an id in front and one behind."""
        left, right = int(before is not None), int(after is not None)
        wrapped = Ragged.from_lengths(
            np.empty(len(self.ids) + len(self) * (left + right), self.ids.dtype),
            self.lengths + left + right,
        )
        inner = np.arange(len(self.ids)) + np.repeat(
            np.arange(len(self)) * (left + right) + left, self.lengths
        )
        wrapped.ids[inner] = self.ids
        if before is not None:
            wrapped.ids[wrapped.offsets[:-1]] = before
        if after is not None:
            wrapped.ids[wrapped.offsets[1:] - 1] = after
        return wrapped

    def beside(self, other: Ragged) -> Ragged:
        """Every row followed by the same row of `other`."""
        begins = np.stack([self.offsets[:-1], len(self.ids) + other.offsets[:-1]], axis=1)
        lengths = np.stack([self.lengths, other.lengths], axis=1)
        both = Ragged(np.concatenate([self.ids, other.ids]), self.offsets)
        return Ragged.from_lengths(both._gather(begins.ravel(), lengths.ravel()), lengths.sum(1))

    def padded(self, rows: np.ndarray, pad_id: int) -> tuple[Tensor, Tensor]:
        """A rectangle of the given rows, padded on the right.

        Args:
            rows: (B,) row numbers.
            pad_id: id in the empty places.

        Returns:
            ids (B, T) long and mask (B, T) bool, True = real token.
        """
        lengths = self.lengths[rows]
        mask = np.arange(lengths.max(initial=0)) < lengths[:, None]  # (B, T)
        ids = np.full(mask.shape, pad_id, np.int64)
        ids[mask] = self._gather(self.offsets[:-1][rows], lengths)
        return torch.from_numpy(ids), torch.from_numpy(mask)
