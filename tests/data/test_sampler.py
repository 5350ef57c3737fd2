import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.core.errors import InputError
from fourfold.data.sampler import EpochSampler, Plan
from tests.data.rows import check_every_cut, rows_of

lengths_of = st.lists(st.integers(1, 40), min_size=1, max_size=80).map(np.array)


@given(lengths_of, st.integers(40, 200), st.integers(1, 9), st.integers(0, 3), st.booleans())
@settings(max_examples=60, deadline=None)
def test_every_row_once_and_no_batch_over_budget(lengths, max_tokens, max_rows, epoch, shuffle):
    plan = Plan(lengths, max_tokens=max_tokens, max_rows=max_rows, seed=1, shuffle=shuffle)
    batches = plan.batches(epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    assert len(batches) == plan.n_batches
    for batch in batches:
        assert 0 < len(batch) <= max_rows
        assert len(batch) * lengths[batch].max() <= max_tokens


@given(lengths_of, st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_budget_is_used_up(lengths, epoch):
    batches = Plan(lengths, max_tokens=80, shuffle=False).batches(epoch)
    for batch, following in itertools.pairwise(batches):
        assert (len(batch) + 1) * lengths[following].min() > 80  # one more row would not fit


@given(st.integers(1, 5), st.integers(20, 70), st.integers(1, 5), st.integers(0, 4), st.booleans())
@settings(max_examples=60, deadline=None)
def test_ranks_share_rows_without_overlap_and_take_equally_many_steps(
    world, n_rows, max_rows, epoch, shuffle
):
    plan = Plan(np.ones(n_rows), max_rows=max_rows + 4, seed=3, shuffle=shuffle)
    seen, steps = [], set()
    for rank in range(world):
        sampler = EpochSampler(plan, rank=rank, world=world)
        sampler.set_epoch(epoch)
        batches = rows_of(sampler)
        steps.add(len(batches))
        assert len(batches) == len(sampler)
        seen += [row for batch in batches for row in batch]
    assert sorted(seen) == list(range(n_rows))
    # In evaluation a last row may go to one rank alone, since none is repeated.
    assert len(steps) == 1 or not shuffle


def test_evaluation_never_repeats_a_row_even_with_more_ranks_than_rows():
    plan = Plan(np.ones(3), max_rows=8, shuffle=False)
    seen = [rows_of(EpochSampler(plan, rank=rank, world=5)) for rank in range(5)]
    assert sorted(row for rank in seen for batch in rank for row in batch) == [0, 1, 2]


def test_training_says_so_when_a_step_has_too_few_rows():
    plan = Plan(np.ones(3), max_rows=8)
    for rank in range(5):  # each of them, or the others would wait for it
        with pytest.raises(InputError, match=r"fewer rows than processes \(5\)"):
            list(EpochSampler(plan, rank=rank, world=5))
    list(EpochSampler(Plan(np.arange(10), max_rows=1), start=(0, 8), world=2))
    with pytest.raises(InputError, match=r"fewer rows than processes \(2\)"):
        list(EpochSampler(Plan(np.arange(10), max_rows=1), start=(0, 9), world=2))


@pytest.mark.parametrize("max_rows", [1, 3, 4])
@pytest.mark.parametrize("world", [1, 2, 5, 8])
@pytest.mark.parametrize("n_rows", [8, 13, 36, 41])
def test_ranks_agree_on_every_epoch_of_rows_of_different_lengths(n_rows, world, max_rows):
    lengths = np.random.default_rng(n_rows).integers(1, 9, n_rows)
    plan = Plan(lengths, max_rows=max_rows, max_tokens=17, seed=1)
    steps = len(EpochSampler(plan, world=world))
    for epoch in range(6):
        ranks = [
            list(EpochSampler(plan, rank=r, world=world, start=(epoch, 0))) for r in range(world)
        ]
        assert {len(batches) for batches in ranks} == {steps}
        seen = [key.row for batches in ranks for batch in batches for key in batch]
        assert sorted(seen) == list(range(n_rows))
        for rank, batches in enumerate(ranks):
            for done, batch in enumerate(batches[:-1], start=1):
                place = (epoch, batch[0].position)
                resumed = EpochSampler(plan, rank=rank, world=world, start=place)
                assert list(resumed) == batches[done:]


def test_too_many_batches_do_not_put_a_long_row_beside_many_short_ones():
    plan = Plan(np.array([1] * 12 + [12] * 6), max_tokens=12, seed=1)  # 12 short ones or a long one
    ranks = [list(EpochSampler(plan, rank=rank, world=6)) for rank in range(6)]
    assert len(ranks[0]) == 1
    for rank in ranks:
        assert len({plan.lengths[key.row] for key in rank[0]}) == 1


def test_counting_the_steps_of_training_orders_no_row():
    class Unordered(Plan):
        def batches(self, epoch):
            raise AssertionError

    assert len(EpochSampler(Unordered(np.arange(9), max_rows=2), rank=1, world=2)) == 3


def test_two_processes_step_over_the_same_rows_as_one_with_two_accumulated_batches():
    plan = Plan(np.ones(64), max_rows=4, seed=2)
    one = rows_of(EpochSampler(plan))
    ranks = [rows_of(EpochSampler(plan, rank=rank, world=2)) for rank in range(2)]
    for step, (a, b) in enumerate(zip(*ranks, strict=True)):
        assert one[2 * step] + one[2 * step + 1] == a + b


@given(st.integers(16, 90), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_where_rows_are_of_one_length_a_step_holds_the_same_rows_however_it_is_cut(n_rows, epoch):
    def plan(rows):
        return Plan(np.ones(n_rows), max_rows=rows)

    check_every_cut(plan, n_rows, epoch)


def test_order_depends_on_seed_and_epoch_and_on_nothing_else():
    lengths = np.repeat([3, 5, 9], 30)

    def orders(seed, epoch):
        return [batch.tolist() for batch in Plan(lengths, max_rows=7, seed=seed).batches(epoch)]

    assert orders(1, 4) == orders(1, 4)
    assert orders(1, 4) != orders(1, 5)
    assert orders(1, 4) != orders(2, 4)
    # Not only the order of the batches is new: the batches are.
    assert {frozenset(b) for b in orders(1, 4)} != {frozenset(b) for b in orders(1, 5)}


def test_evaluation_order_is_the_same_in_every_epoch_and_keeps_rows_of_equal_length_in_order():
    plan = Plan(np.ones(10), max_rows=3, shuffle=False)
    assert [batch.tolist() for batch in plan.batches(7)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]


@given(st.integers(0, 25), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_started_anywhere_it_goes_on_as_if_never_stopped(done, world):
    plan = Plan(np.arange(1, 61), max_tokens=240, seed=5)
    position = min(done * world, plan.n_batches)
    for rank in range(world):
        whole = EpochSampler(plan, rank=rank, world=world, start=(2, 0))
        resumed = EpochSampler(plan, rank=rank, world=world, start=(2, position))
        if position == plan.n_batches:
            assert resumed.epoch == 3  # the end of an epoch is the beginning of the next
            whole.set_epoch(3)
            assert list(resumed) == list(whole)
        else:
            assert list(resumed) == list(whole)[position // world :]
        assert len(resumed) == len(whole)
        resumed.set_epoch(4)
        whole.set_epoch(4)
        assert list(resumed) == list(whole)


def test_iterating_changes_nothing():
    sampler = EpochSampler(Plan(np.ones(20), max_rows=3), start=(1, 2))
    assert list(sampler) == list(sampler)


def test_positions_count_batches_of_all_ranks():
    plan = Plan(np.ones(10), max_rows=2)
    ends = [[batch[0].position for batch in EpochSampler(plan, rank=r, world=2)] for r in (0, 1)]
    assert ends == [[2, 4, 5], [2, 4, 5]]


@pytest.mark.parametrize(
    ("lengths", "bounds", "message"),
    [
        ([], {"max_rows": 2}, "without rows"),
        ([1], {}, "need a bound"),
        ([1], {"max_rows": 0}, "max_rows must be at least 1, not 0"),
        ([4, 90, 5], {"max_tokens": 80}, "Row 1 has 90 tokens"),
    ],
)
def test_impossible_plans(lengths, bounds, message):
    with pytest.raises(InputError, match=message):
        Plan(np.array(lengths), **bounds)


def test_fingerprint_sees_data_bounds_and_seed():
    base = Plan(np.array([1, 2, 3]), max_rows=2).fingerprint()
    assert base == Plan(np.array([1, 2, 3]), max_rows=2).fingerprint()
    others = [
        Plan(np.array([1, 3, 2]), max_rows=2),
        Plan(np.array([1, 2, 3]), max_rows=3),
        Plan(np.array([1, 2, 3]), max_rows=2, seed=1),
        Plan(np.array([1, 2, 3]), max_rows=2, max_tokens=9),
    ]
    assert base not in {plan.fingerprint() for plan in others}


@pytest.mark.parametrize("stopped", [1, 2, 3])
def test_the_same_batches_each_epoch_also_after_a_resume(stopped):
    """`overfit_batches`: a checkpoint names epoch 0, in whichever epoch it was written."""
    plan = Plan(np.ones(40, np.int64), max_rows=4, seed=0)

    def served(start, first, epochs):
        sampler = EpochSampler(plan, start=start, steps=3, still=True)
        found = []
        for epoch in range(first, first + epochs):
            if epoch > first or start == (0, 0):  # not before the first epoch of a resumed run
                sampler.set_epoch(epoch)
            found.append([[key.row for key in batch] for batch in itertools.islice(sampler, 3)])
        return found

    whole = served((0, 0), 0, 1)[0]
    assert served((0, 0), 0, 3) == [whole] * 3
    rest = whole[stopped:]
    assert [epoch[: 3 - stopped] or epoch for epoch in served((0, stopped), 2, 1)] == [
        rest or whole
    ]
    assert served((0, stopped), 2, 3)[1:] == [whole] * 2
