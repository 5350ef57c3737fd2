"""EpochSampler: distributed batch sampler that can resume at any batch of any epoch."""

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
from torch.utils.data import Sampler

from fourfold.data.loading.length_bucketing import LengthBucketedOrder
from fourfold.errors import InputError


class Position(NamedTuple):
    """Position in the training data, from which a run resumes.

    Args:
        epoch: Index of the epoch, from 0.
        batch: Number of batches (micro-batches) of the epoch that all ranks together have trained.
    """

    epoch: int = 0
    batch: int = 0


class SampleKey(NamedTuple):
    """Key with which the sampler requests the example `row` of a dataset.

    `epoch` and `position` are those of the batch with this example (see `batches`).
    """

    epoch: int
    position: int
    row: int


@dataclass(eq=False)
class EpochSampler(Sampler[list[SampleKey]]):
    """Batch sampler of one rank (process) over the batches of a `LengthBucketedOrder`.

    Each step of an epoch takes the next `world_size` batches of the order, one for each rank. In
    training, the last step divides all remaining examples among the ranks. Therefore every rank
    takes the same number of steps, and no example comes twice. If the last step could have fewer
    examples than ranks in some epoch, it takes batches of the steps before it in all epochs, and
    the batches of these steps are divided, so that no rank exceeds the size of a batch. Only if the
    epoch may have too few examples for so many steps is the last step merged into the one before.

    In evaluation (an order that does not shuffle), batches stay complete. An example is therefore
    always padded with the same examples, and its results are bitwise equal on any number of
    devices. Batches are divided among the ranks only if the split has fewer batches than ranks.

    Args:
        start: Index of the first epoch to read, and number of batches of this epoch to skip
            because all ranks together have already trained them.
        max_steps: Number of steps after which the Trainer ends an epoch; None means all. The
            sampler itself does not stop there. If all these steps are trained at `start`, it starts
            at the next epoch.
        repeat_first_epoch: Use the batches of epoch 0 in every epoch, as if the order did not
            shuffle.

    Raises:
        InputError: During iteration, on all ranks, if the last training step still has fewer
            examples than ranks. The split is then too small, or training was resumed with another
            number of ranks and too few examples of the epoch remain.
    """

    order: LengthBucketedOrder
    _: KW_ONLY
    rank: int = 0
    world_size: int = 1
    start: Position = field(default=Position())
    max_steps: int | None = None
    repeat_first_epoch: bool = False

    def __post_init__(self) -> None:
        epoch, batch = self.start
        # A checkpoint after the last batch of an epoch resumes at the next epoch.
        n_steps = self.n_steps()
        limit = n_steps if self.max_steps is None else min(self.max_steps, n_steps)
        is_complete = n_steps - self.n_steps(batch) >= limit
        self.start = Position(epoch + 1, 0) if is_complete else Position(epoch, batch)
        self.epoch = self.start.epoch
        self.sampler = self  # Lightning calls `batch_sampler.sampler.set_epoch`

    def set_epoch(self, epoch: int) -> None:
        """Set the index of the epoch for the next iteration; Lightning calls this method.

        Evaluation samplers ignore the epoch, so that all validations have the same masks.
        """
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of steps of this rank in a complete epoch.

        The steps before `start` are included, because Lightning counts them as well.
        """
        n_steps = self.n_steps()
        if self.order.shuffle:
            return n_steps
        # Evaluation repeats no row, so this rank may have no rows in the last step.
        last = self.order.batches(0)[(n_steps - 1) * self.world_size :]
        return n_steps - (len(self._rows_of_rank(last)) == 0)

    def __iter__(self) -> Iterator[list[SampleKey]]:
        epoch = self.epoch if self.order.shuffle and not self.repeat_first_epoch else 0
        batches = self.order.batches(epoch)
        first = self.start.batch if self.epoch == self.start.epoch else 0
        starts, last = self._step_starts(batches, first)
        n_rows_of_last = sum(map(len, batches[[*starts[-1:], *last][-1] :]))
        # All ranks raise, or those with rows would wait for the others forever.
        if self.order.shuffle and n_rows_of_last < self.world_size:
            message = (
                f"must be at most the rows in the last step of an epoch, got {self.world_size}"
            )
            message += " processes: use fewer devices or smaller batches"
            raise InputError(message, option="trainer.devices")
        for start, end in pairwise(chain(starts, last, [len(batches)])):
            rows = self._rows_of_rank(batches[start:end])
            if len(rows):
                yield [SampleKey(epoch, end, row) for row in rows.tolist()]

    def _rows_of_rank(self, batches: Sequence[np.ndarray]) -> np.ndarray:
        """Return the indices of the rows that this rank processes in the step with these batches.

        In evaluation, the array may be empty in the last step.
        """
        if not self.order.shuffle and self.order.n_batches >= self.world_size:
            return batches[self.rank] if self.rank < len(batches) else np.array([], dtype=np.int64)
        return _divide_among_ranks(batches, self.world_size, self.order.equal_lengths)[self.rank]

    def n_steps(self, first: int = 0) -> int:
        """Return the number of steps from the batch `first` to the end of an epoch.

        The number is the same in all epochs.
        """
        n_steps = -(-(self.order.n_batches - first) // self.world_size)
        return n_steps - (n_steps > 1 and self._merges_steps)

    @cached_property
    def _merges_steps(self) -> bool:
        """True if in some epoch the rows may not suffice for a last step of its own."""
        order, size = self.order, self.world_size
        n_full = (order.n_batches - 1) // size  # number of steps before the last
        suffices = order.min_rows_of_last(order.n_batches - n_full * size) >= size
        # Steps as short as possible have at most `size` - 1 rows and one batch each.
        most_rows = (n_full + 1) * (size - 1) + order.max_rows_of(n_full)
        return order.shuffle and not suffices and order.n_rows <= most_rows

    def _step_starts(self, batches: Sequence[np.ndarray], first: int) -> tuple[range, list[int]]:
        """Return the index of the first batch of each step: of most steps, and of the last steps.

        A run that resumes at the beginning `first` of any step has the same steps from there on.
        """
        # If the last step has fewer rows than ranks, it begins earlier, and the steps before it as
        # well, until a step has batches to spare.
        starts = range(first, len(batches), self.world_size)[: self.n_steps(first)]
        if not self.order.shuffle:
            return starts, []
        last: list[int] = []
        while len(starts) > 1:
            start, end = starts[-1], last[0] if last else len(batches)
            while start > first and sum(map(len, batches[start:end])) < self.world_size:
                start -= 1
            if start == starts[-1]:
                return starts, last
            starts = starts[:-1]
            if start == first:
                return starts[:1], last
            last.insert(0, start)
        # Too few batches remain in an epoch that was begun with another number of ranks.
        if last and sum(map(len, batches[first : last[0]])) < self.world_size:
            del last[0]
        return starts, last


def _divide_among_ranks(
    batches: Sequence[np.ndarray], world_size: int, equal_lengths: bool
) -> list[np.ndarray]:
    """Divide the rows of the batches of one step among the ranks, an array of rows for each."""
    # Of different lengths, an even division could put a long example among many short ones, which
    # would need much padding. Then the smallest batches are joined, or the largest ones halved.
    if equal_lengths and len(batches) > world_size:
        return np.array_split(np.concatenate(batches), world_size)
    shares = list(batches)
    while len(shares) > world_size:
        shares.sort(key=len)
        shares[:2] = [np.concatenate(shares[:2])]
    while len(shares) < world_size:
        largest = max(range(len(shares)), key=lambda i: len(shares[i]))
        shares[largest : largest + 1] = np.array_split(shares[largest], 2)
    return shares
