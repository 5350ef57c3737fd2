"""RaggedArray: rows of different lengths stored as one flat array with offsets.

The array saves the memory of a Python object for each sentence of a corpus.

Shapes: B selected rows, T tokens of the longest of these rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class RaggedArray:
    """Array of rows of different lengths; row i is `ids[offsets[i] : offsets[i + 1]]`.

    Example:
        >>> rows = RaggedArray.from_lengths(np.array([5, 6, 7]), np.array([1, 2]))
        >>> rows.padded(np.array([0, 1]), pad_id=0)[0].tolist()
        [[5, 0], [6, 7]]
    """

    ids: np.ndarray
    offsets: np.ndarray

    @classmethod
    def from_lengths(cls, ids: np.ndarray, lengths: np.ndarray) -> "RaggedArray":
        """Divide a flat array `ids` into consecutive rows of the given lengths (rows,)."""
        return cls(ids, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))

    @classmethod
    def from_rows(cls, rows: Sequence[Any]) -> "RaggedArray":
        """Return a RaggedArray (int32) of rows of integers, such as lists of token ids."""
        lengths = np.array([len(row) for row in rows])
        return cls.from_lengths(np.concatenate(rows, dtype=np.int32, casting="unsafe"), lengths)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        return self.ids[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """Length of each row, an array (rows,)."""
        return np.diff(self.offsets)

    def _slices(self, starts: np.ndarray, lengths: np.ndarray) -> "RaggedArray":
        """Return a RaggedArray whose row i is `ids[starts[i] : starts[i] + lengths[i]]`."""
        first = np.cumsum(lengths) - lengths
        steps = np.arange(int(lengths.sum())) - np.repeat(first, lengths)
        return RaggedArray.from_lengths(self.ids[np.repeat(starts, lengths) + steps], lengths)

    def take(self, rows: np.ndarray) -> "RaggedArray":
        """Return a RaggedArray of the rows with these indices, in this order."""
        starts = self.offsets[rows]
        return self._slices(starts, self.offsets[rows + 1] - starts)

    def truncate(self, max_len: int | np.ndarray) -> "RaggedArray":
        """Return a RaggedArray with only the first `max_len` elements of every row.

        `max_len` is the maximum for all rows, or an array (rows,) with one maximum for each.
        """
        return self._slices(self.offsets[:-1], np.minimum(self.lengths, max_len))

    def wrap(self, before: int | None = None, after: int | None = None) -> "RaggedArray":
        """Return a RaggedArray with one id added at the start or end (or both) of every row."""
        rows = self
        for value, borders in ((before, slice(None, -1)), (after, slice(1, None))):
            if value is not None:
                ids = np.insert(rows.ids, rows.offsets[borders], value)
                rows = RaggedArray.from_lengths(ids, rows.lengths + 1)
        return rows

    def concat_rows(self, other: "RaggedArray") -> "RaggedArray":
        """Return a RaggedArray whose row i is row i of this array, followed by row i of `other`."""
        starts = np.stack([self.offsets[:-1], len(self.ids) + other.offsets[:-1]], axis=1)
        lengths = np.stack([self.lengths, other.lengths], axis=1)
        both = RaggedArray(np.concatenate([self.ids, other.ids]), self.offsets)
        parts = both._slices(starts.ravel(), lengths.ravel())
        return RaggedArray(parts.ids, parts.offsets[::2])

    def padded(self, rows: np.ndarray, pad_id: int) -> tuple[Tensor, Tensor]:
        """Return the rows with the indices `rows` (B,) as a batch with padding on the right.

        Returns:
            Ids (B, T) long, where T is the length of the longest row, and mask (B, T) bool, True =
            real token.
        """
        taken = self.take(rows)
        mask = np.arange(taken.lengths.max(initial=0)) < taken.lengths[:, None]  # (B, T)
        ids = np.full(mask.shape, pad_id, np.int64)
        ids[mask] = taken.ids
        return torch.from_numpy(ids), torch.from_numpy(mask)
