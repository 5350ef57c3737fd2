"""Which rows make a batch, and in what order: a pure function of (seed, epoch).

`Plan` cuts a split into batches; `EpochSampler` deals them, or those of any other `Order`, out to
the ranks and can start anywhere. Neither keeps a random state, so the place in the data is two
numbers, and a run that is killed and resumed sees exactly the batches that an uninterrupted one
sees, with any number of workers that prefetch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from torch.utils.data import Sampler

from fourfold.core.errors import InputError


class Key(NamedTuple):
    """What the sampler asks a dataset for: `row`, read in `epoch`, for the batch at `position`."""

    epoch: int
    position: int
    row: int


class Order(Protocol):
    """What a sampler asks of a split: the same number of batches in every epoch, in some order."""

    seed: int
    shuffle: bool  # False: the same batches in the same order in every epoch
    even: bool  # every batch but the last has equally many rows, whatever the epoch

    @property
    def n_rows(self) -> int:
        """Rows of an epoch."""

    @property
    def n_batches(self) -> int:
        """Batches of every epoch, over all ranks."""

    def fewest(self, n: int) -> int:
        """Rows that the last `n` batches have at least, whatever the epoch."""

    def batches(self, epoch: int) -> Sequence[np.ndarray]:
        """The epoch's batches, each an array of row numbers; may be made only when looked at."""

    def fingerprint(self) -> str:
        """Equal for equal orders: what a checkpoint compares before it resumes inside one."""


class Plan:
    """Cuts rows of known lengths into batches of bounded size.

    Rows of one length are shuffled among themselves, then cut, then the batches are shuffled. The
    cuts see only the sorted lengths, so every epoch has the same number of batches while their
    content differs. Where all lengths are equal the rows' own order is kept: then batches of 8, two
    of 4 and four of 2 in a step, on one device or on several, hold the same rows.

    Args:
        lengths: length of each row; all ones where rows need no padding.
        max_tokens: bound on the padded tokens of a batch, rows x longest row.
        max_rows: bound on the rows of a batch.
        seed: decides, with the epoch, the order.
        shuffle: False gives the same batches in the same order in every epoch (evaluation).

    Raises:
        InputError: no rows, no bound, or a row longer than `max_tokens`.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        *,
        max_tokens: int | None = None,
        max_rows: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        if max_tokens is None and max_rows is None:
            raise InputError("Batches need a bound: give max_tokens, max_rows or both.")
        for name, bound in (("max_tokens", max_tokens), ("max_rows", max_rows)):
            if bound is not None and bound < 1:
                raise InputError(f"{name} must be at least 1, not {bound}.")
        if len(lengths) == 0:
            raise InputError("A split without rows cannot be cut into batches.")
        self.lengths = np.asarray(lengths, dtype=np.int64)
        longest = int(self.lengths.argmax())
        if max_tokens is not None and self.lengths[longest] > max_tokens:
            raise InputError(
                f"Row {longest} has {self.lengths[longest]} tokens, more than a whole batch"
                f" may hold (max_tokens={max_tokens})."
            )
        self.max_tokens, self.max_rows = max_tokens, max_rows
        self.seed, self.shuffle = seed, shuffle
        self.even = bool((self.lengths == self.lengths[0]).all())
        self._cuts = self._cut(np.sort(self.lengths))
        self._places: tuple[int, np.ndarray, np.ndarray] | None = None

    def _cut(self, ascending: np.ndarray) -> np.ndarray:
        """Greedy cut of ascending lengths; returns the inner borders."""
        cuts, start, n_rows = [], 0, len(ascending)
        while start < n_rows:
            rows = n_rows - start if self.max_rows is None else self.max_rows
            if self.max_tokens is not None:
                rows = min(rows, self.max_tokens // max(1, int(ascending[start])))
                window = ascending[start : start + rows]
                cost = window * np.arange(1, len(window) + 1)
                rows = int(np.searchsorted(cost, self.max_tokens, side="right"))
            start += rows
            cuts.append(start)
        return np.array(cuts[:-1], dtype=np.int64)

    @property
    def n_rows(self) -> int:
        """Rows of an epoch."""
        return len(self.lengths)

    @property
    def n_batches(self) -> int:
        """Batches of every epoch, over all ranks."""
        return len(self._cuts) + 1

    def fewest(self, n: int) -> int:
        """Rows that the last `n` batches have at least, whatever the epoch."""
        rows = np.diff(self._cuts, prepend=0, append=self.n_rows)
        if self.even:
            return int(rows[-n:].sum())
        rows.sort()
        # The last one is among the fuller half, see `batches`.
        return int(rows[: n - 1].sum() + rows[max(n - 1, len(rows) // 2)])

    def batches(self, epoch: int) -> list[np.ndarray]:
        """The epoch's batches, each an array of row numbers."""
        if not self.shuffle:
            return np.split(np.argsort(self.lengths, kind="stable"), self._cuts)
        rng = np.random.default_rng([self.seed, epoch])
        shuffled = self._shuffled(rng)
        if self.even:
            return np.split(shuffled, self._cuts)
        ascending = shuffled[np.argsort(self.lengths[shuffled], kind="stable")]
        batches = np.split(ascending, self._cuts)
        order = rng.permutation(len(batches))
        # Where ranks do not divide the number of batches, the last ones are shared out by rows: end
        # on a full one.
        rows = np.array([len(batches[i]) for i in order])
        full = np.flatnonzero(rows >= np.median(rows))
        chosen = full[rng.integers(len(full))]
        order[[chosen, -1]] = order[[-1, chosen]]
        return [batches[i] for i in order]

    def _shuffled(self, rng: np.random.Generator) -> np.ndarray:
        """The rows of an epoch, in no order."""
        return rng.permutation(self.n_rows)

    def partners(self, rows: np.ndarray, epoch: int) -> np.ndarray:
        """The row beside each in an epoch of equal lengths, itself if it is left over at the end.

        Neighbours fall into one batch wherever batches are even, and stay each other's partner
        when they do not.
        """
        assert self.even
        assert self.shuffle
        if self._places is None or self._places[0] != epoch:
            order = np.concatenate(self.batches(epoch))
            place = np.empty(order.max() + 1, dtype=np.int64)
            place[order] = np.arange(len(order))
            self._places = (epoch, order, place)
        _, order, place = self._places
        beside = place[rows] ^ 1
        return np.where(beside < len(order), order[np.minimum(beside, len(order) - 1)], rows)

    def fingerprint(self) -> str:
        """Equal for equal plans: what a checkpoint compares before it resumes inside one."""
        bounds = (self.max_tokens, self.max_rows, self.seed, self.shuffle)
        return hashlib.blake2b(
            self.lengths.tobytes() + repr(bounds).encode(), digest_size=8
        ).hexdigest()


class EpochSampler(Sampler[list[Key]]):
    """Batch sampler of one rank: disjoint shares of an `Order`, from any position of any epoch on.

    Step i of an epoch consumes the next `world` batches of the order, one a rank; the last step
    shares out the rows of what is left, so that every rank takes the same number of steps and no
    row comes twice. Where some epoch may leave too few for all ranks, the step before takes them
    along in every epoch.

    Evaluation leaves batches whole, so that a row is computed in the same company on any number of
    devices, and to the same digits; only fewer batches than ranks are shared out by rows.

    Args:
        plan: the batches: a `Plan`, or another `Order`.
        rank: number of this process.
        world: number of processes.
        start: (epoch, position) to begin at; other epochs are served from their beginning.
        steps: of an epoch, where the Trainer takes fewer than there are; None means all.
        still: every epoch is the first one again; None means: unless the plan shuffles.

    Raises:
        InputError: (while iterating, on all ranks) fewer rows than ranks in the last step of
            training: in all of the data, or behind the place where another number of ranks stopped.
    """

    def __init__(
        self,
        plan: Order,
        *,
        rank: int = 0,
        world: int = 1,
        start: tuple[int, int] = (0, 0),
        steps: int | None = None,
        still: bool | None = None,
    ) -> None:
        epoch, position = start
        taken = plan.n_batches if steps is None else min(plan.n_batches, steps * world)
        # A checkpoint of an epoch's last batch means: the next epoch.
        self.start = (epoch, position) if position < taken else (epoch + 1, 0)
        self.plan, self.rank, self.world = plan, rank, world
        self.epoch = self.start[0]
        self.still = not plan.shuffle if still is None else still
        self.sampler = self  # where Lightning looks for set_epoch

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning before every epoch; after `__iter__` in a resumed run's first one.

        Lightning calls it on evaluation's samplers too, with the epoch of training; evaluation
        reads epoch 0 each time, or its masks would change from one validation to the next.
        """
        self.epoch = epoch

    def __len__(self) -> int:
        """Steps of a whole epoch: Lightning counts from its beginning even if it resumes inside."""
        begins = self._begins()
        if self.plan.shuffle:
            return len(begins)
        # Evaluation repeats no row, so its last step may leave this rank nothing.
        last = self.plan.batches(0)[begins[-1] :]
        return len(begins) - (len(self._mine(last)) == 0)

    def __iter__(self) -> Iterator[list[Key]]:
        epoch = 0 if self.still else self.epoch
        batches = self.plan.batches(epoch)
        begins = self._begins(self.start[1] if self.epoch == self.start[0] else 0)
        # All ranks must say so, or the others would wait for the one that does.
        if self.plan.shuffle and sum(map(len, batches[begins[-1] :])) < self.world:
            raise InputError(
                f"The last step of an epoch has fewer rows than processes ({self.world}):"
                " use fewer devices or smaller batches."
            )
        for begin in begins:
            end = len(batches) if begin == begins[-1] else begin + self.world
            mine = self._mine(batches[begin:end])
            if len(mine):
                yield [Key(epoch, end, row) for row in mine.tolist()]

    def _mine(self, group: Sequence[np.ndarray]) -> np.ndarray:
        """This rank's rows of a step, if there are any."""
        if not self.plan.shuffle and self.plan.n_batches >= self.world:
            return group[self.rank] if self.rank < len(group) else np.array([], dtype=np.int64)
        return _share_out(group, self.world, self.plan.even)[self.rank]

    def _begins(self, first: int = 0) -> range:
        """Where each step begins; it ends where the next one does. The same in every epoch."""
        begins = range(first, self.plan.n_batches, self.world)
        if self.plan.shuffle and len(begins) > 1:
            too_few = self.plan.fewest(self.plan.n_batches - begins[-1]) < self.world
            return begins[:-1] if too_few else begins
        return begins


def _share_out(group: Sequence[np.ndarray], world: int, even: bool) -> list[np.ndarray]:
    """As many parts as ranks: the emptiest batches are joined, or the fullest one halved.

    Rows of one length are dealt out evenly if there are too many batches; of others, one long row
    would pad many short ones.
    """
    if even and len(group) > world:
        return np.array_split(np.concatenate(group), world)
    parts = list(group)
    while len(parts) > world:
        parts.sort(key=len)
        parts[:2] = [np.concatenate(parts[:2])]
    while len(parts) < world:
        fullest = max(range(len(parts)), key=lambda i: len(parts[i]))
        parts[fullest : fullest + 1] = np.array_split(parts[fullest], 2)
    return parts
