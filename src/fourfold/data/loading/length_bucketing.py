"""Batch orders: length-bucketed batches and repeated augmentation.

A batch order divides the rows (examples) of a split into batches. The batches depend only on seed
and epoch, and an order keeps no random state. The epoch and the number of its trained batches are
therefore enough to resume.
"""

import hashlib
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from fourfold.core.validation import check_positive
from fourfold.errors import InputError

# Number of images whose copies are interleaved before the next images follow.
ROWS_PER_REPEAT_GROUP = 16


@dataclass(eq=False)
class LengthBucketedOrder:
    """Order of batches whose rows (examples) have similar lengths, for little padding.

    In each epoch the rows are shuffled and then stably sorted by length, so that rows of equal
    length are in random order. The sorted rows are divided greedily into batches, and the batches
    are shuffled. The boundaries between batches depend only on the sorted lengths. Every epoch
    therefore has the same number of batches, with different rows in them.

    If all lengths are equal, the shuffled rows are divided without sorting, and the batches are not
    shuffled. Two devices with batches of 4 rows then train on the same rows in each step as one
    device with batches of 8 rows.

    Args:
        lengths: (rows,) length of each row, in tokens; all ones for data without padding.
        max_tokens: Upper bound on the tokens of a batch, padding included (number of rows times
            length of the longest row); None if only the rows are limited.
        max_rows: Upper bound on the rows of a batch; None if only the tokens are limited.
        seed: Seed of the shuffling, combined with the number of the epoch.
        shuffle: False to return the same batches in the same order in every epoch (evaluation).

    Attributes:
        n_rows: Number of rows (examples) in an epoch.
        n_batches: Number of batches in an epoch, over all ranks.
        equal_lengths: True if all rows have the same length. Then every batch, except perhaps the
            last, has the same number of rows.

    Raises:
        InputError: If there are no rows, if a bound is below 1, or if a row is
            longer than `max_tokens`.

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
        self.n_rows = len(self.lengths)
        self.n_batches = len(self._boundaries) + 1
        sizes = np.diff(self._boundaries, prepend=0, append=self.n_rows)
        self._ascending_sizes = np.sort(sizes)  # rows of each batch
        self._partners = (-1, self.lengths)  # index of an epoch, and each row's partner in it

    def _divide(self, ascending: np.ndarray) -> np.ndarray:
        """Divide ascending lengths greedily into batches, and return where new batches begin."""
        boundaries = []
        start = 0
        while start < len(ascending):
            boundaries.append(start)
            rows = self.max_rows or len(ascending)
            if self.max_tokens is not None:
                rows = min(rows, self.max_tokens // max(1, int(ascending[start])))
                candidates = ascending[start : start + rows]
                padded_tokens = candidates * np.arange(1, len(candidates) + 1)
                rows = int(np.searchsorted(padded_tokens, self.max_tokens, side="right"))
            start += rows
        return np.array(boundaries[1:], dtype=np.int64)

    def max_rows_of(self, n: int) -> int:
        """Return the number of rows in the `n` largest batches of every epoch."""
        return int(self._ascending_sizes[self.n_batches - n :].sum())

    def min_rows_of_last(self, n: int) -> int:
        """Return a lower bound on the number of rows in the last `n` batches of every epoch."""
        sizes = self._ascending_sizes
        if self.equal_lengths:  # only the last batch may have fewer rows than the others
            return int(sizes[:n].sum())
        # `batches` puts a batch of at least median size last.
        return int(sizes[: n - 1].sum() + sizes[max(n - 1, len(sizes) // 2)])

    def batches(self, epoch: int) -> list[np.ndarray]:
        """Return the batches of an epoch, arrays with the indices in the split of their rows."""
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
        """Return, for each of `rows` (B,), the row with which MixUp or CutMix mixes it, (B,).

        The first and second row of the epoch's shuffled order are partners, then the third and
        fourth row, and so on. If the number of rows is odd, the last row is its own partner. The
        partners do not depend on the batch size or the number of devices, so a partner may be in
        another batch. The method requires `shuffle=True` and rows of equal length.
        """
        assert self.equal_lengths
        assert self.shuffle
        if self._partners[0] != epoch:
            order = np.concatenate(self.batches(epoch))
            pairs = order[: len(order) // 2 * 2].reshape(-1, 2)
            partner = np.arange(order.max() + 1)
            partner[pairs] = pairs[:, ::-1]
            self._partners = (epoch, partner)
        return self._partners[1][rows]

    def fingerprint(self) -> str:
        """Return a hash of the data and options on which the batches depend.

        Training resumes only from a checkpoint with the same hash.
        """
        bounds = (self.max_tokens, self.max_rows, self.seed, self.shuffle)
        data = self.lengths.tobytes() + repr(bounds).encode()
        return hashlib.blake2b(data, digest_size=8).hexdigest()


class RepeatedAugmentationOrder(LengthBucketedOrder):
    """Batch order of repeated augmentation: each sampled image comes several times in an epoch.

    As with timm's RepeatAugSampler, an epoch is not longer than without repetition. Each epoch
    samples a random fraction 1 / `aug_repeats` of the images anew. The sampled images form groups
    of 16, and all copies of a group come before those of the next group. The copies of an image are
    therefore usually trained in the same step, possibly on several ranks. Two copies of an image
    are never partners in `mix_partners`, because MixUp would mix the image with itself. Hoffer et
    al. 2020 (arXiv:1901.09335) and Berman et al. 2019 (arXiv:1902.05509) describe the method. DeiT
    uses three copies (Touvron et al. 2020, Table 9).

    Args:
        n_rows: Number of images N in the split, which is also the number of rows of an epoch.
        aug_repeats: Number of copies of each image. Copy k of image i has the row index i + k N.
        options: Keyword arguments of `LengthBucketedOrder`.
    """

    def __init__(self, n_rows: int, aug_repeats: int, **options: Any) -> None:
        super().__init__(np.ones(n_rows), **options)
        self.aug_repeats = aug_repeats

    def _shuffled(self, rng: np.random.Generator) -> np.ndarray:
        n_sampled = -(-self.n_rows // self.aug_repeats)
        # An even number, so that `mix_partners` never pairs two copies of an image.
        n_sampled += n_sampled % 2 if self.aug_repeats > 1 else 0
        sampled = rng.permutation(self.n_rows)[:n_sampled]
        copy, index = np.divmod(np.arange(self.aug_repeats * len(sampled)), len(sampled))
        order = np.lexsort((rng.random(len(index)), copy, index // ROWS_PER_REPEAT_GROUP))
        return (sampled[index] + copy * self.n_rows)[order][: self.n_rows]

    def fingerprint(self) -> str:
        text = f"{super().fingerprint()} {self.aug_repeats}"
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
