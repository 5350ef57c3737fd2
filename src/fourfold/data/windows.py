"""An order over chunks of rows that needs few chunks at a time and little memory.

Shuffling all rows would send each batch to all chunks at once, and a permutation of 10^9 rows takes
8 GB. Shuffling through a buffer would need the buffer to be saved. Here chunks are shuffled, and
rows among the few chunks of a window: any batch of any epoch follows from two numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import overload

import numpy as np

from fourfold.core.errors import InputError


class WindowPlan:
    """Cuts the rows of chunks into batches of equally many rows, as an `Order`.

    Batches run on over the ends of windows, so that batches of 8, two of 4 and four of 2 in a step,
    on one device or on several, hold the same rows.

    Args:
        chunk_rows: rows of each chunk.
        window: chunks whose rows are mixed.
        max_rows: rows of a batch.
        seed: decides, with the epoch, the order.
        shuffle: False gives all rows in their own order in every epoch (evaluation).

    Raises:
        InputError: no rows, or a window or a batch of none.
    """

    even = True

    def __init__(
        self,
        chunk_rows: np.ndarray,
        *,
        window: int,
        max_rows: int,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        for name, bound in (("window", window), ("max_rows", max_rows)):
            if bound < 1:
                raise InputError(f"{name} must be at least 1, not {bound}.")
        self.chunk_rows = np.asarray(chunk_rows, dtype=np.int64)
        self.firsts = np.concatenate([[0], np.cumsum(self.chunk_rows)])
        if self.n_rows == 0:
            raise InputError("A split without rows cannot be cut into batches.")
        # In their own order rows need no company, and memory is that of one chunk.
        self.window = window if shuffle else 1
        self.max_rows, self.seed, self.shuffle = max_rows, seed, shuffle

    @property
    def n_rows(self) -> int:
        """Rows of an epoch."""
        return int(self.firsts[-1])

    @property
    def n_batches(self) -> int:
        """Batches of every epoch, over all ranks."""
        return -(-self.n_rows // self.max_rows)

    def fewest(self, n: int) -> int:
        """Rows that the last `n` batches have at least, whatever the epoch."""
        return self.n_rows - (self.n_batches - n) * self.max_rows

    def batches(self, epoch: int) -> WindowBatches:
        """The epoch's batches, each an array of row numbers, made when looked at."""
        return WindowBatches(self, epoch if self.shuffle else 0)

    def fingerprint(self) -> str:
        """Equal for equal plans: what a checkpoint compares before it resumes inside one."""
        bounds = (self.window, self.max_rows, self.seed, self.shuffle)
        return hashlib.blake2b(
            self.chunk_rows.tobytes() + repr(bounds).encode(), digest_size=8
        ).hexdigest()


class WindowBatches(Sequence[np.ndarray]):
    """The batches of one epoch. Holds a number for each chunk, and the rows of the last window.

    Args:
        plan: what to order.
        epoch: which of its orders.
    """

    def __init__(self, plan: WindowPlan, epoch: int) -> None:
        self.plan, self.epoch = plan, epoch
        self.chunks = np.arange(len(plan.chunk_rows))
        if plan.shuffle:
            self.chunks = np.random.default_rng([plan.seed, epoch]).permutation(self.chunks)
        begins = np.arange(0, len(self.chunks), plan.window)
        self.ends = np.cumsum(np.add.reduceat(plan.chunk_rows[self.chunks], begins))
        self._last: tuple[int, np.ndarray] | None = None

    def __len__(self) -> int:
        return self.plan.n_batches

    @overload
    def __getitem__(self, index: int) -> np.ndarray: ...

    @overload
    def __getitem__(self, index: slice) -> list[np.ndarray]: ...

    def __getitem__(self, index: int | slice) -> np.ndarray | list[np.ndarray]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        size = self.plan.max_rows
        return self._rows(number * size, min((number + 1) * size, self.plan.n_rows))

    def _rows(self, begin: int, end: int) -> np.ndarray:
        """Places [begin, end) of the epoch."""
        parts = []
        while begin < end:
            number = int(np.searchsorted(self.ends, begin, side="right"))
            rows = self._window(number)
            place = begin - (int(self.ends[number]) - len(rows))
            parts.append(rows[place : place + end - begin])
            begin += len(parts[-1])
        return np.concatenate(parts)

    def _window(self, number: int) -> np.ndarray:
        """All rows of a window, in their order."""
        if self._last is None or self._last[0] != number:
            plan = self.plan
            chunks = self.chunks[number * plan.window : (number + 1) * plan.window]
            rows = np.concatenate([np.arange(*plan.firsts[chunk : chunk + 2]) for chunk in chunks])
            if plan.shuffle:
                # 1 + number: a zero at the end would be no other seed than that of the chunks.
                rng = np.random.default_rng([plan.seed, self.epoch, 1 + number])
                rows = rng.permutation(rows)
            self._last = (number, rows)
        return self._last[1]
