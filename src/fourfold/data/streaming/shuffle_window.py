"""Batch order that shuffles chunks, and then rows within windows of chunks.

A chunk is a file with many rows (training examples). A window is a few consecutive chunks of the
shuffled order. A shuffle of all rows would read many chunks for each batch, and would need much
memory. A shuffle buffer, the usual alternative, would have to be stored in every checkpoint. Here
every batch depends only on the seed, the epoch and the index of the batch.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import Any

import numpy as np


@dataclass(eq=False)
class ShuffleWindowOrder:
    """Batch order that shuffles the chunks, and then the rows within each window of chunks.

    A window is `shuffle_chunks` consecutive chunks of the shuffled order. All batches except the
    last have the same number of rows, so a batch may have rows of two windows. The order of the
    rows does not depend on the batch size. Two batches of 4 rows hold the same rows as one batch of
    8. The class implements `BatchOrder`.

    Args:
        chunk_rows: (chunks,) number of rows of each chunk.
        max_rows: Number of rows in a batch; only the last batch of an epoch may have fewer.
        seed: Seed of the order, which also depends on the epoch.
        shuffle: True for training; False keeps the stored order in every epoch (evaluation).
        content: Bytes that identify the chunks, such as their names, for `fingerprint`.

    Attributes:
        first_rows: Array (chunks + 1,) with the index of the first row of each chunk, followed by
            the number of all rows.
    """

    chunk_rows: np.ndarray
    _: KW_ONLY
    shuffle_chunks: int
    max_rows: int
    seed: int = 0
    shuffle: bool = True
    content: bytes = b""

    def __post_init__(self) -> None:
        self.equal_lengths = True
        self.first_rows = np.concatenate([[0], np.cumsum(self.chunk_rows)])
        if not self.shuffle:
            self.shuffle_chunks = 1  # one chunk at a time needs the least memory

    @property
    def n_rows(self) -> int:
        return int(self.first_rows[-1])

    @property
    def n_batches(self) -> int:
        return -(-self.n_rows // self.max_rows)

    def min_rows_of_last(self, n: int) -> int:
        return self.n_rows - (self.n_batches - n) * self.max_rows

    def max_rows_of(self, n: int) -> int:
        return min(n * self.max_rows, self.n_rows)

    def batches(self, epoch: int) -> "ShuffleWindowBatches":
        """Return the batches of an epoch, each of which is computed when it is accessed."""
        return ShuffleWindowBatches(self, epoch if self.shuffle else 0)

    def fingerprint(self) -> str:
        options = (self.shuffle_chunks, self.max_rows, self.seed, self.shuffle)
        data = self.chunk_rows.tobytes() + repr(options).encode() + self.content
        return hashlib.blake2b(data, digest_size=8).hexdigest()


class ShuffleWindowBatches(Sequence[np.ndarray]):
    """Sequence of the batches of one epoch, which are computed when they are requested.

    Memory holds only the order of the chunks and the row numbers of one window.
    """

    def __init__(self, order: ShuffleWindowOrder, epoch: int) -> None:
        self.order = order
        self.epoch = epoch
        self.chunks = np.arange(len(order.chunk_rows))
        if order.shuffle:
            self.chunks = np.random.default_rng([order.seed, epoch]).permutation(self.chunks)
        self.chunk_ends = np.cumsum(order.chunk_rows[self.chunks])
        self.window = lru_cache(maxsize=1)(self._window)

    def __len__(self) -> int:
        return self.order.n_batches

    def __getitem__(self, index: Any) -> Any:
        """Return the batch at an integer index, or the list of batches of a slice."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        begin = range(len(self))[index] * self.order.max_rows
        end = min(begin + self.order.max_rows, self.order.n_rows)
        slices = []
        while begin < end:
            chunk = int(np.searchsorted(self.chunk_ends, begin, side="right"))
            start, rows = self.window(chunk // self.order.shuffle_chunks)
            slices.append(rows[begin - start : end - start])
            begin = start + len(rows)
        return np.concatenate(slices)

    def _window(self, number: int) -> tuple[int, np.ndarray]:
        """Return the number of rows before a window, and its rows in the order of the epoch."""
        order = self.order
        first = number * order.shuffle_chunks
        chunks = self.chunks[first : first + order.shuffle_chunks]
        rows = np.concatenate([np.arange(*order.first_rows[chunk : chunk + 2]) for chunk in chunks])
        if order.shuffle:
            # For NumPy, the seed [seed, epoch, 0] is the seed [seed, epoch] of the chunks.
            rows = np.random.default_rng([order.seed, self.epoch, 1 + number]).permutation(rows)
        return int(self.chunk_ends[first] - order.chunk_rows[self.chunks[first]]), rows
