"""Length-bucketed batches, repeated augmentation, and the protocol of batch orders.

A batch order divides the rows of a split into batches, as a pure function of seed and epoch. An
order keeps no random state. A position in the data is therefore two numbers: the epoch, and the
number of batches of that epoch that are done.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Protocol

import numpy as np

from fourfold.core.validation import check_positive
from fourfold.errors import InputError

# Distinct rows whose copies are interleaved before the next rows follow.
ROWS_PER_REPEAT_GROUP = 16


class BatchOrder(Protocol):
    """Protocol of a batch order: the batches of each epoch, in the same number in every epoch.

    Attributes:
        seed: Seed of the shuffling.
        shuffle: Shuffle rows and batches anew in each epoch; otherwise all epochs are equal.
        equal_lengths: All rows have the same length. Every batch except the last batch has then
            the same number of rows.
    """

    seed: int
    shuffle: bool
    equal_lengths: bool

    @property
    def n_rows(self) -> int:
        """Number of rows in an epoch."""

    @property
    def n_batches(self) -> int:
        """Number of batches in an epoch, over all ranks."""

    def min_rows_of_last(self, n: int) -> int:
        """Return a lower bound, valid in every epoch, on the rows in the last `n` batches."""

    def batches(self, epoch: int) -> Sequence[np.ndarray]:
        """Return the batches of an epoch, each an array of row numbers; may be computed lazily."""

    def fingerprint(self) -> str:
        """Return a hash that is equal for equal orders; a resume compares it."""


@dataclass(eq=False)
class LengthBucketedOrder:
    """Length-bucketed batches: rows of similar length, bounded by padded tokens, rows, or both.

    Rows of equal length are shuffled among each other, the sorted rows are divided greedily, and
    the batches are shuffled. The boundaries depend only on the sorted lengths. Every epoch has
    therefore the same number of batches, each with other rows. If all lengths are equal, rows are
    not sorted: one batch of 8 rows, two batches of 4 or four batches of 2 then hold the same rows,
    for any number of devices.

    Args:
        lengths: Length of each row; ones if rows need no padding.
        max_tokens: Upper bound on the padded tokens of a batch (rows x longest row).
        max_rows: Upper bound on the rows of a batch.
        seed: Determines the order, together with the epoch.
        shuffle: False gives the same batches in the same order in every epoch (evaluation).

    Raises:
        InputError: If there are no rows, no bound, or a row longer than `max_tokens`.

    Example:
        >>> order = LengthBucketedOrder(np.array([3, 1, 2, 3]), max_tokens=6, shuffle=False)
        >>> [batch.tolist() for batch in order.batches(0)]
        [[1, 2], [0, 3]]
    """

    lengths: np.ndarray
    _: KW_ONLY
    max_tokens: int | None = None
    max_rows: int | None = None
    seed: int = 0
    shuffle: bool = True

    def __post_init__(self) -> None:
        if self.max_tokens is None and self.max_rows is None:
            raise InputError("or max_rows must be given to bound a batch", option="max_tokens")
        check_positive("max_tokens", self.max_tokens)
        check_positive("max_rows", self.max_rows)
        if len(self.lengths) == 0:
            raise InputError("must have at least one element, got none", option="lengths")
        self.lengths = np.asarray(self.lengths, dtype=np.int64)
        longest = int(self.lengths.argmax())
        if self.max_tokens is not None and self.lengths[longest] > self.max_tokens:
            message = f"must be at least the {self.lengths[longest]} tokens of row {longest}"
            raise InputError(f"{message}, got {self.max_tokens}", option="max_tokens")
        self.equal_lengths = bool((self.lengths == self.lengths[0]).all())
        self._boundaries = self._divide(np.sort(self.lengths))
        self._partner_index: tuple[int, np.ndarray, np.ndarray] | None = None

    def _divide(self, ascending: np.ndarray) -> np.ndarray:
        """Divide ascending lengths greedily, and return the boundaries between batches."""
        boundaries = []
        start = 0
        n_rows = len(ascending)
        while start < n_rows:
            rows = n_rows - start if self.max_rows is None else self.max_rows
            if self.max_tokens is not None:
                rows = min(rows, self.max_tokens // max(1, int(ascending[start])))
                candidates = ascending[start : start + rows]
                padded_tokens = candidates * np.arange(1, len(candidates) + 1)
                rows = int(np.searchsorted(padded_tokens, self.max_tokens, side="right"))
            start += rows
            boundaries.append(start)
        return np.array(boundaries[:-1], dtype=np.int64)

    @property
    def n_rows(self) -> int:
        """Number of rows in an epoch."""
        return len(self.lengths)

    @property
    def n_batches(self) -> int:
        """Number of batches in an epoch, over all ranks."""
        return len(self._boundaries) + 1

    def min_rows_of_last(self, n: int) -> int:
        """Return a lower bound, valid in every epoch, on the rows in the last `n` batches."""
        sizes = np.diff(self._boundaries, prepend=0, append=self.n_rows)
        if self.equal_lengths:
            return int(sizes[-n:].sum())
        sizes.sort()
        # `batches` puts a batch of at least median size last.
        return int(sizes[: n - 1].sum() + sizes[max(n - 1, len(sizes) // 2)])

    def batches(self, epoch: int) -> list[np.ndarray]:
        """Return the batches of an epoch, each an array of row numbers."""
        if not self.shuffle:
            return np.split(np.argsort(self.lengths, kind="stable"), self._boundaries)
        rng = np.random.default_rng([self.seed, epoch])
        shuffled = self._shuffled(rng)
        if self.equal_lengths:
            return np.split(shuffled, self._boundaries)
        ascending = shuffled[np.argsort(self.lengths[shuffled], kind="stable")]
        batches = np.split(ascending, self._boundaries)
        order = rng.permutation(len(batches))
        # The rows of the last batches are divided among the ranks if the number of batches is not a
        # multiple of the world size. A batch of at least median size comes last for that reason.
        sizes = np.array([len(batches[i]) for i in order])
        large = np.flatnonzero(sizes >= np.median(sizes))
        chosen = large[rng.integers(len(large))]
        order[[chosen, -1]] = order[[-1, chosen]]
        return [batches[i] for i in order]

    def _shuffled(self, rng: np.random.Generator) -> np.ndarray:
        return rng.permutation(self.n_rows)

    def mix_partners(self, rows: np.ndarray, epoch: int) -> np.ndarray:
        """Return the partner of each row for MixUp and CutMix, in an epoch of equal lengths.

        Partners are neighbours in the order, so they share a batch if batch sizes are even, and
        stay partners if they are odd. A row that is left over at the end is its own partner.
        """
        assert self.equal_lengths
        assert self.shuffle
        if self._partner_index is None or self._partner_index[0] != epoch:
            order = np.concatenate(self.batches(epoch))
            position = np.empty(order.max() + 1, dtype=np.int64)
            position[order] = np.arange(len(order))
            self._partner_index = (epoch, order, position)
        _, order, position = self._partner_index
        partner = position[rows] ^ 1
        return np.where(partner < len(order), order[np.minimum(partner, len(order) - 1)], rows)

    def fingerprint(self) -> str:
        """Return a hash that is equal for equal orders; a resume compares it."""
        bounds = (self.max_tokens, self.max_rows, self.seed, self.shuffle)
        data = self.lengths.tobytes() + repr(bounds).encode()
        return hashlib.blake2b(data, digest_size=8).hexdigest()


class RepeatedAugmentationOrder(LengthBucketedOrder):
    """Batches for repeated augmentation: each sampled row comes several times in an epoch.

    The order is that of timm's RepeatAugSampler, for any number of ranks. The length of an epoch
    does not change, since each epoch samples one in `aug_repeats` of the rows anew. All copies of a
    row are in one global batch, except at the boundary of a batch. Copies are never neighbours,
    because MixUp would mix a row with itself. Hoffer et al. 2020 (arXiv:1901.09335) and Berman et
    al. 2019 (arXiv:1902.05509) describe the method; DeiT uses three copies (Touvron et al. 2020,
    Table 9).

    Args:
        n_rows: Number of rows N.
        aug_repeats: Copies of each sampled row; copy k of row i has the number i + k N.
        options: Options of `LengthBucketedOrder`.
    """

    def __init__(self, n_rows: int, aug_repeats: int, **options: Any) -> None:
        super().__init__(np.ones(n_rows), **options)
        self.aug_repeats = aug_repeats

    def _shuffled(self, rng: np.random.Generator) -> np.ndarray:
        n_sampled = -(-self.n_rows // self.aug_repeats)
        # An even number, so that the last row of one copy and the first of the next differ.
        n_sampled += n_sampled % 2 if self.aug_repeats > 1 else 0
        sampled = rng.permutation(self.n_rows)[:n_sampled]
        copy, index = np.divmod(np.arange(self.aug_repeats * len(sampled)), len(sampled))
        order = np.lexsort((rng.random(len(index)), copy, index // ROWS_PER_REPEAT_GROUP))
        return (sampled[index] + copy * self.n_rows)[order][: self.n_rows]

    def fingerprint(self) -> str:
        """Return a hash that is equal for equal orders; a resume compares it."""
        text = f"{super().fingerprint()} {self.aug_repeats}"
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
