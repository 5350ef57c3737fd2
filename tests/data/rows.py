"""Row numbers that samplers yield, for tests of batch orders."""

import itertools
from collections.abc import Callable

from fourfold.data.loading.length_bucketing import LengthBucketedOrder
from fourfold.data.loading.sampler import EpochSampler

MakeOrder = Callable[[int], LengthBucketedOrder]  # argument: rows per batch


def rows_of(sampler: EpochSampler) -> list[list[int]]:
    """Return the row numbers of each batch of one rank."""
    return [[key.row for key in batch] for batch in sampler]


def rows_of_steps(
    make_order: MakeOrder, epoch: int, world_size: int, rows: int, accumulated: int
) -> list[list[int]]:
    """Return the sorted rows of each optimizer step, over all ranks and micro-batches."""
    ranks = []
    for rank in range(world_size):
        sampler = EpochSampler(make_order(rows), rank=rank, world_size=world_size)
        sampler.set_epoch(epoch)
        batches = rows_of(sampler)
        assert len(batches) == len(sampler)
        starts = range(0, len(batches), accumulated)
        ranks.append([batches[i : i + accumulated] for i in starts])
    return [sorted(itertools.chain(*itertools.chain(*r))) for r in zip(*ranks, strict=True)]


def check_steps_have_equal_rows(make_order: MakeOrder, n_rows: int, epoch: int) -> None:
    """Check that steps of 8 rows do not depend on ranks, batch size and accumulation."""
    expected = rows_of_steps(make_order, epoch, 1, 8, 1)
    for world_size, rows, accumulated in ((2, 4, 1), (4, 2, 1), (1, 1, 8), (2, 2, 2)):
        # A remainder with fewer rows than ranks is joined to the step before it.
        if n_rows % 8 >= world_size or n_rows % 8 == 0:
            steps = rows_of_steps(make_order, epoch, world_size, rows, accumulated)
            assert steps == expected
