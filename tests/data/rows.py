"""What samplers give, as plain row numbers."""

import itertools
from collections.abc import Callable

from fourfold.data.sampler import EpochSampler, Order

Make = Callable[[int], Order]  # a plan with batches of so many rows


def rows_of(sampler: EpochSampler) -> list[list[int]]:
    """The batches of one process."""
    return [[key.row for key in batch] for batch in sampler]


def steps_of(make: Make, epoch: int, world: int, rows: int, accumulated: int) -> list[list[int]]:
    """The rows of each optimizer step, sorted, over all processes and micro-batches."""
    ranks = []
    for rank in range(world):
        sampler = EpochSampler(make(rows), rank=rank, world=world)
        sampler.set_epoch(epoch)
        batches = rows_of(sampler)
        assert len(batches) == len(sampler)
        windows = range(0, len(batches), accumulated)
        ranks.append([batches[i : i + accumulated] for i in windows])
    return [sorted(itertools.chain(*itertools.chain(*r))) for r in zip(*ranks, strict=True)]


def check_every_cut(make: Make, n_rows: int, epoch: int) -> None:
    """Steps of 8 rows are the same ones however they are cut."""
    whole = steps_of(make, epoch, 1, 8, 1)
    for cut in ((2, 4, 1), (4, 2, 1), (1, 1, 8), (2, 2, 2)):
        if n_rows % 8 >= cut[0] or n_rows % 8 == 0:  # else the rest goes with the step before
            assert steps_of(make, epoch, *cut) == whole
