import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.core.errors import InputError
from fourfold.data.sampler import EpochSampler
from fourfold.data.windows import WindowPlan
from tests.data.rows import check_every_cut

chunks_of = st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any).map(np.array)


@given(chunks_of, st.integers(1, 5), st.integers(1, 9), st.integers(0, 3), st.booleans())
@settings(max_examples=80, deadline=None)
def test_every_row_once_and_any_batch_by_itself(chunks, window, max_rows, epoch, shuffle):
    plan = WindowPlan(chunks, window=window, max_rows=max_rows, seed=1, shuffle=shuffle)
    batches = list(plan.batches(epoch))
    assert len(batches) == plan.n_batches == -(-chunks.sum() // max_rows)
    assert sorted(np.concatenate(batches).tolist()) == list(range(chunks.sum()))
    assert {len(batch) for batch in batches[:-1]} <= {max_rows}
    for i in reversed(range(len(batches))):
        assert plan.batches(epoch)[i].tolist() == batches[i].tolist()
    assert [b.tolist() for b in plan.batches(epoch)[1:]] == [b.tolist() for b in batches[1:]]
    with pytest.raises(IndexError):
        plan.batches(epoch)[len(batches)]


@given(chunks_of, st.integers(1, 5), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_chunks_of_a_window_and_no_others_are_needed_at_a_time(chunks, window, epoch):
    plan = WindowPlan(chunks, window=window, max_rows=3, seed=2)
    order = np.concatenate(list(plan.batches(epoch)))
    of = np.searchsorted(plan.firsts, order, side="right") - 1
    seen: list[set[int]] = [set()]
    for chunk in of.tolist():
        if chunk not in seen[-1] and len(seen[-1]) == window:
            seen.append(set())
        seen[-1].add(chunk)
    # A chunk without rows may leave a window with fewer, never with more.
    if chunks.all():
        assert sorted(itertools.chain(*seen)) == list(range(len(chunks)))
        assert len(seen) == -(-len(chunks) // window)


def test_rows_of_different_chunks_are_mixed():
    plan = WindowPlan(np.full(4, 100), window=4, max_rows=20)
    for batch in plan.batches(0):
        assert len(set((batch // 100).tolist())) >= 3


def test_order_depends_on_seed_and_epoch_and_on_nothing_else():
    def order(seed, epoch):
        plan = WindowPlan(np.full(6, 20), window=2, max_rows=7, seed=seed)
        return np.concatenate(list(plan.batches(epoch))).tolist()

    assert order(1, 4) == order(1, 4)
    assert order(1, 4) != order(1, 5)
    assert order(1, 4) != order(2, 4)
    for n_chunks, window in ((1, 1), (20, 1)):  # rows alone, chunks alone
        plan = WindowPlan(np.full(n_chunks, 40 // n_chunks), window=window, max_rows=40, seed=1)
        assert plan.batches(4)[0].tolist() != plan.batches(5)[0].tolist()
    # The order of the chunks is not that of the first window's rows.
    one = WindowPlan(np.full(50, 1), window=50, max_rows=50, seed=1).batches(0)
    assert one[0].tolist() != one.chunks.tolist()
    assert one[0].tolist() != one.chunks[one.chunks].tolist()


def test_evaluation_reads_in_order_in_every_epoch():
    plan = WindowPlan(np.array([3, 0, 4]), window=2, max_rows=3, shuffle=False)
    assert [batch.tolist() for batch in plan.batches(7)] == [[0, 1, 2], [3, 4, 5], [6]]


@given(chunks_of, st.integers(0, 40), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_started_anywhere_it_goes_on_as_if_never_stopped(chunks, done, world):
    plan = WindowPlan(chunks + world, window=2, max_rows=3, seed=5)
    steps = len(EpochSampler(plan, world=world))
    position = min(done, steps - 1) * world
    for rank in range(world):
        whole = EpochSampler(plan, rank=rank, world=world, start=(2, 0))
        resumed = EpochSampler(plan, rank=rank, world=world, start=(2, position))
        assert list(resumed) == list(whole)[position // world :]
        resumed.set_epoch(4)
        whole.set_epoch(4)
        assert list(resumed) == list(whole)


@given(st.integers(16, 90), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_a_step_holds_the_same_rows_however_it_is_cut(n_rows, epoch):
    chunks = np.array([n_rows // 3, n_rows // 4, n_rows - n_rows // 3 - n_rows // 4])

    def plan(rows):
        return WindowPlan(chunks, window=2, max_rows=rows)

    check_every_cut(plan, n_rows, epoch)


def test_a_thousand_million_rows_take_the_memory_of_a_window():
    plan = WindowPlan(np.full(40_000, 25_000), window=8, max_rows=32)
    tracemalloc.start()
    try:
        sampler = EpochSampler(plan, rank=1, world=2, start=(3, 20_000_000))
        assert len(sampler) == 15_625_000
        batch = next(iter(sampler))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (len(batch), batch[0].epoch, batch[0].position) == (32, 3, 20_000_002)
    assert peak < 20e6


@pytest.mark.parametrize(
    ("chunks", "bounds", "message"),
    [
        ([], {}, "without rows"),
        ([0, 0], {}, "without rows"),
        ([5], {"window": 0}, "window must be at least 1, not 0"),
        ([5], {"max_rows": 0}, "max_rows must be at least 1, not 0"),
    ],
)
def test_impossible_plans(chunks, bounds, message):
    with pytest.raises(InputError, match=message):
        WindowPlan(np.array(chunks, np.int64), **({"window": 2, "max_rows": 2} | bounds))


def test_fingerprint_sees_chunks_bounds_and_seed():
    def fingerprint(chunks=(3, 4), **options):
        options = {"window": 2, "max_rows": 2, "seed": 0} | options
        return WindowPlan(np.array(chunks), **options).fingerprint()

    others = [{"chunks": (4, 3)}, {"window": 3}, {"max_rows": 3}, {"seed": 1}, {"shuffle": False}]
    assert fingerprint() == fingerprint()
    assert len({fingerprint(), *(fingerprint(**other) for other in others)}) == 6
