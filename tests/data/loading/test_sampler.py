"""EpochSampler: shares of the ranks, resume at any position, and steps of equal rows."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.data.loading.length_bucketing import LengthBucketedOrder
from fourfold.data.loading.sampler import EpochSampler
from fourfold.errors import InputError
from tests.data.rows import check_steps_have_equal_rows, rows_of


@given(st.integers(1, 5), st.integers(20, 70), st.integers(1, 5), st.integers(0, 4), st.booleans())
@settings(max_examples=60, deadline=None)
def test_ranks_share_rows_without_overlap(
    world_size: int, n_rows: int, max_rows: int, epoch: int, shuffle: bool
) -> None:
    order = LengthBucketedOrder(np.ones(n_rows), max_rows=max_rows + 4, seed=3, shuffle=shuffle)
    rows = []
    n_steps = set()
    for rank in range(world_size):
        sampler = EpochSampler(order, rank=rank, world_size=world_size)
        sampler.set_epoch(epoch)
        batches = rows_of(sampler)
        n_steps.add(len(batches))
        assert len(batches) == len(sampler)
        rows += [row for batch in batches for row in batch]
    assert sorted(rows) == list(range(n_rows))
    # Evaluation repeats no row, so only some ranks may have rows in the last step.
    assert len(n_steps) == 1 or not shuffle


def test_evaluation_repeats_no_row_with_more_ranks_than_rows() -> None:
    order = LengthBucketedOrder(np.ones(3), max_rows=8, shuffle=False)
    ranks = [rows_of(EpochSampler(order, rank=rank, world_size=5)) for rank in range(5)]
    assert sorted(row for batches in ranks for batch in batches for row in batch) == [0, 1, 2]


def test_too_few_rows_in_the_last_step_are_rejected_on_all_ranks() -> None:
    order = LengthBucketedOrder(np.ones(3), max_rows=8)
    for rank in range(5):
        with pytest.raises(InputError, match="got 5 processes"):
            list(EpochSampler(order, rank=rank, world_size=5))
    order = LengthBucketedOrder(np.arange(10), max_rows=1)
    assert len(list(EpochSampler(order, start=(0, 8), world_size=2))) == 1
    with pytest.raises(InputError, match="got 2 processes"):
        list(EpochSampler(order, start=(0, 9), world_size=2))


@pytest.mark.parametrize("max_rows", [1, 3, 4])
@pytest.mark.parametrize("world_size", [1, 2, 5, 8])
@pytest.mark.parametrize("n_rows", [8, 13, 36, 41])
def test_ranks_take_equal_steps_over_rows_of_different_lengths(
    n_rows: int, world_size: int, max_rows: int
) -> None:
    lengths = np.random.default_rng(n_rows).integers(1, 9, n_rows)
    order = LengthBucketedOrder(lengths, max_rows=max_rows, max_tokens=17, seed=1)
    n_steps = len(EpochSampler(order, world_size=world_size))
    for epoch in range(6):
        ranks = [
            list(EpochSampler(order, rank=rank, world_size=world_size, start=(epoch, 0)))
            for rank in range(world_size)
        ]
        assert {len(batches) for batches in ranks} == {n_steps}
        rows = [key.row for batches in ranks for batch in batches for key in batch]
        assert sorted(rows) == list(range(n_rows))
        for rank, batches in enumerate(ranks):
            for done, batch in enumerate(batches[:-1], start=1):
                start = (epoch, batch[0].position)
                resumed = EpochSampler(order, rank=rank, world_size=world_size, start=start)
                assert list(resumed) == batches[done:]


def test_surplus_batches_are_joined_by_size_not_across_lengths() -> None:
    # Two batches too many: a batch of 12 short rows, and one long row for each of the others.
    order = LengthBucketedOrder(np.array([1] * 12 + [12] * 6), max_tokens=12, seed=1)
    ranks = [list(EpochSampler(order, rank=rank, world_size=6)) for rank in range(6)]
    assert [len(batches) for batches in ranks] == [1] * 6
    for (batch,) in ranks:
        assert len({order.lengths[key.row] for key in batch}) == 1


@given(
    seed=st.integers(0, 10**6),
    n_rows=st.integers(16, 400),
    longest=st.integers(1, 64),
    max_rows=st.sampled_from([None, 2, 7]),
    world_size=st.integers(1, 16),
)
@settings(max_examples=150, deadline=None)
def test_no_share_of_any_step_exceeds_the_bounds(
    seed: int, n_rows: int, longest: int, max_rows: int | None, world_size: int
) -> None:
    """On all ranks in all epochs; batches of one row may leave no other choice than to merge."""
    lengths = np.random.default_rng(seed).integers(1, longest, n_rows, endpoint=True)
    order = LengthBucketedOrder(lengths, max_tokens=64, max_rows=max_rows, seed=seed)
    n_steps = len(EpochSampler(order, world_size=world_size))
    is_merged = n_steps < -(-order.n_batches // world_size)
    for epoch in range(3):
        ranks = [
            list(EpochSampler(order, rank=rank, world_size=world_size, start=(epoch, 0)))
            for rank in range(world_size)
        ]
        assert {len(steps) for steps in ranks} == {n_steps}
        rows = [key.row for steps in ranks for step in steps for key in step]
        assert sorted(rows) == list(range(n_rows))
        batches = order.batches(epoch)
        start = 0
        for step, shares in enumerate(zip(*ranks, strict=True), start=1):
            (end,) = {key.position for share in shares for key in share}
            rows = [key.row for share in shares for key in share]
            assert sorted(rows) == sorted(np.concatenate(batches[start:end]).tolist())
            sampler = EpochSampler(order, world_size=world_size)
            assert sampler.n_steps(end) == n_steps - step
            start = end
        unmerged = (steps[: n_steps - is_merged] for steps in ranks)
        for share in itertools.chain(*unmerged):
            assert len(share) * max(lengths[key.row] for key in share) <= 64
            assert len(share) <= (max_rows or n_rows)
    # Epochs of enough rows for all steps, even if the largest batches come one after another.
    sizes = sorted(map(len, order.batches(0)), reverse=True)
    assert not (is_merged and n_rows > (n_steps + 1) * world_size + sum(sizes[:n_steps]))


@given(st.integers(0, 10**6), st.sampled_from([(8, 12), (16, 8), (12, 5), (2, 7)]))
@settings(max_examples=30, deadline=None)
def test_resume_at_any_step_with_any_number_of_ranks(seed: int, sizes: tuple[int, int]) -> None:
    lengths = np.random.default_rng(seed).integers(1, 60, 150 + seed % 100)
    order = LengthBucketedOrder(lengths, max_tokens=64, seed=seed)
    before, after = sizes
    steps = list(EpochSampler(order, world_size=before, start=(1, 0)))
    batches = order.batches(1)
    for done, position in enumerate((step[0].position for step in steps[:-1]), start=1):
        again = EpochSampler(order, world_size=before, start=(1, position))
        assert list(again) == steps[done:]
        if len(np.concatenate(batches[position:])) < after:
            continue  # an error, as the docstring says
        ranks = [
            EpochSampler(order, rank=rank, world_size=after, start=(1, position))
            for rank in range(after)
        ]
        rows = [key.row for rank in ranks for step in rank for key in step]
        assert sorted(rows) == sorted(np.concatenate(batches[position:]).tolist())
        # Lightning ends an epoch after `len` steps, the trained steps included.
        trained = len(ranks[0]) - ranks[0].n_steps(position)
        assert all(trained + len(list(rank)) <= len(rank) for rank in ranks)


@pytest.mark.parametrize("limit", [1, 2, 3, None])
def test_a_limited_epoch_ends_at_the_same_step_after_a_resume(limit: int | None) -> None:
    lengths = np.random.default_rng(1).integers(1, 20, 105)
    order = LengthBucketedOrder(lengths, max_tokens=60, seed=1)
    steps = list(EpochSampler(order, world_size=8))[:limit]
    for step in steps:
        resumed = EpochSampler(order, world_size=8, start=(0, step[0].position), max_steps=limit)
        assert resumed.start.epoch == (step is steps[-1])


def test_number_of_training_steps_is_computed_without_shuffling() -> None:
    class NotShuffled(LengthBucketedOrder):
        def batches(self, epoch: int) -> list[np.ndarray]:
            raise AssertionError

    assert len(EpochSampler(NotShuffled(np.arange(9), max_rows=2), rank=1, world_size=2)) == 3


def test_two_ranks_take_the_rows_of_two_accumulated_batches() -> None:
    order = LengthBucketedOrder(np.ones(64), max_rows=4, seed=2)
    single = rows_of(EpochSampler(order))
    ranks = [rows_of(EpochSampler(order, rank=rank, world_size=2)) for rank in range(2)]
    assert len(ranks[0]) == len(ranks[1]) == 8
    for step, (a, b) in enumerate(zip(*ranks, strict=True)):
        assert single[2 * step] + single[2 * step + 1] == a + b


@given(st.integers(16, 90), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_steps_of_equal_lengths_do_not_depend_on_ranks_or_accumulation(
    n_rows: int, epoch: int
) -> None:
    def make_order(rows: int) -> LengthBucketedOrder:
        return LengthBucketedOrder(np.ones(n_rows), max_rows=rows)

    check_steps_have_equal_rows(make_order, n_rows, epoch)


@given(st.integers(0, 25), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_resume_continues_at_any_position(done: int, world_size: int) -> None:
    order = LengthBucketedOrder(np.arange(1, 61), max_tokens=240, seed=5)
    position = min(done * world_size, order.n_batches)
    for rank in range(world_size):
        expected = EpochSampler(order, rank=rank, world_size=world_size, start=(2, 0))
        resumed = EpochSampler(order, rank=rank, world_size=world_size, start=(2, position))
        if position == order.n_batches:
            assert resumed.epoch == 3  # the end of an epoch is the beginning of the next
            expected.set_epoch(3)
            assert list(resumed) == list(expected)
        else:
            assert list(resumed) == list(expected)[position // world_size :]
        assert len(resumed) == len(expected)
        resumed.set_epoch(4)
        expected.set_epoch(4)
        assert list(resumed) == list(expected)


def test_iteration_does_not_change_the_sampler() -> None:
    sampler = EpochSampler(LengthBucketedOrder(np.ones(20), max_rows=3), start=(1, 2))
    assert list(sampler) == list(sampler)


def test_positions_count_the_batches_of_all_ranks() -> None:
    order = LengthBucketedOrder(np.ones(10), max_rows=2)
    for rank in range(2):
        batches = list(EpochSampler(order, rank=rank, world_size=2))
        assert [batch[0].position for batch in batches] == [2, 4, 5]


@pytest.mark.parametrize("stopped", [1, 2, 3])
def test_overfit_batches_repeats_the_first_epoch_after_a_resume(stopped: int) -> None:
    """With `overfit_batches` every epoch has the batches of epoch 0, also in checkpoints."""
    order = LengthBucketedOrder(np.ones(40, np.int64), max_rows=4, seed=0)

    def epochs(start: tuple[int, int], first: int, n_epochs: int) -> list[list[list[int]]]:
        sampler = EpochSampler(order, start=start, max_steps=3, repeat_first_epoch=True)
        batches = []
        for epoch in range(first, first + n_epochs):
            # Lightning does not call set_epoch before the first epoch of a resumed run.
            if epoch > first or start == (0, 0):
                sampler.set_epoch(epoch)
            batches.append([[key.row for key in batch] for batch in itertools.islice(sampler, 3)])
        return batches

    complete = epochs((0, 0), 0, 1)[0]
    assert epochs((0, 0), 0, 3) == [complete] * 3
    rest = complete[stopped:]
    (resumed,) = epochs((0, stopped), 2, 1)
    assert (resumed[: 3 - stopped] or resumed) == (rest or complete)
    assert epochs((0, stopped), 2, 3)[1:] == [complete] * 2
