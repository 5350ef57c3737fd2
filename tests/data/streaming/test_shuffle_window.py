import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.data.loading.sampler import EpochSampler
from fourfold.data.streaming.shuffle_window import ShuffleWindowOrder
from tests.data.rows import check_steps_have_equal_rows

chunks_of = st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any).map(np.array)


@given(chunks_of, st.integers(1, 5), st.integers(1, 9), st.integers(0, 3), st.booleans())
@settings(max_examples=80, deadline=None)
def test_epoch_has_every_row_once_and_batches_are_independent(
    chunks, window, max_rows, epoch, shuffle
):
    order = ShuffleWindowOrder(
        chunks, shuffle_chunks=window, max_rows=max_rows, seed=1, shuffle=shuffle
    )
    batches = list(order.batches(epoch))
    assert len(batches) == order.n_batches == -(-chunks.sum() // max_rows)
    assert sorted(np.concatenate(batches).tolist()) == list(range(chunks.sum()))
    assert {len(batch) for batch in batches[:-1]} <= {max_rows}
    for i in reversed(range(len(batches))):
        assert order.batches(epoch)[i].tolist() == batches[i].tolist()
    assert [b.tolist() for b in order.batches(epoch)[1:]] == [b.tolist() for b in batches[1:]]
    with pytest.raises(IndexError):
        order.batches(epoch)[len(batches)]


@given(chunks_of, st.integers(1, 5), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_batches_read_one_window_of_chunks_at_a_time(chunks, window, epoch):
    order = ShuffleWindowOrder(chunks, shuffle_chunks=window, max_rows=3, seed=2)
    rows = np.concatenate(list(order.batches(epoch)))
    chunk_of_row = np.searchsorted(order.first_rows, rows, side="right") - 1
    seen: list[set[int]] = [set()]
    for chunk in chunk_of_row.tolist():
        if chunk not in seen[-1] and len(seen[-1]) == window:
            seen.append(set())
        seen[-1].add(chunk)
    # A chunk without rows is missing from its window.
    if chunks.all():
        assert sorted(itertools.chain(*seen)) == list(range(len(chunks)))
        assert len(seen) == -(-len(chunks) // window)


def test_batches_mix_rows_of_different_chunks():
    order = ShuffleWindowOrder(np.full(4, 100), shuffle_chunks=4, max_rows=20)
    for batch in order.batches(0):
        assert len(set((batch // 100).tolist())) >= 3


def test_order_depends_on_seed_and_epoch_alone():
    def rows_of_epoch(seed, epoch):
        order = ShuffleWindowOrder(np.full(6, 20), shuffle_chunks=2, max_rows=7, seed=seed)
        return np.concatenate(list(order.batches(epoch))).tolist()

    assert rows_of_epoch(1, 4) == rows_of_epoch(1, 4)
    assert rows_of_epoch(1, 4) != rows_of_epoch(1, 5)
    assert rows_of_epoch(1, 4) != rows_of_epoch(2, 4)
    for n_chunks, window in ((1, 1), (20, 1)):  # shuffles only rows, only chunks
        order = ShuffleWindowOrder(
            np.full(n_chunks, 40 // n_chunks), shuffle_chunks=window, max_rows=40, seed=1
        )
        assert order.batches(4)[0].tolist() != order.batches(5)[0].tolist()
    # The order of the chunks is not that of the first window's rows.
    one = ShuffleWindowOrder(np.full(50, 1), shuffle_chunks=50, max_rows=50, seed=1).batches(0)
    assert one[0].tolist() != one.chunks.tolist()
    assert one[0].tolist() != one.chunks[one.chunks].tolist()


def test_evaluation_order_is_equal_in_all_epochs():
    order = ShuffleWindowOrder(np.array([3, 0, 4]), shuffle_chunks=2, max_rows=3, shuffle=False)
    assert [batch.tolist() for batch in order.batches(7)] == [[0, 1, 2], [3, 4, 5], [6]]


@given(chunks_of, st.integers(0, 40), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_resume_restores_position(chunks, done, world):
    order = ShuffleWindowOrder(chunks + world, shuffle_chunks=2, max_rows=3, seed=5)
    steps = list(EpochSampler(order, world_size=world))
    done = min(done, len(steps) - 1)
    position = steps[done - 1][0].position if done else 0
    for rank in range(world):
        whole = EpochSampler(order, rank=rank, world_size=world, start=(2, 0))
        resumed = EpochSampler(order, rank=rank, world_size=world, start=(2, position))
        assert list(resumed) == list(whole)[done:]
        resumed.set_epoch(4)
        whole.set_epoch(4)
        assert list(resumed) == list(whole)


@given(st.integers(16, 90), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_optimizer_step_has_the_same_rows_for_any_batch_size(n_rows, epoch):
    chunks = np.array([n_rows // 3, n_rows // 4, n_rows - n_rows // 3 - n_rows // 4])

    def make_order(rows):
        return ShuffleWindowOrder(chunks, shuffle_chunks=2, max_rows=rows)

    check_steps_have_equal_rows(make_order, n_rows, epoch)


def test_memory_of_a_billion_rows_is_that_of_one_window():
    order = ShuffleWindowOrder(np.full(40_000, 25_000), shuffle_chunks=8, max_rows=32)
    tracemalloc.start()
    try:
        sampler = EpochSampler(order, rank=1, world_size=2, start=(3, 20_000_000))
        assert len(sampler) == 15_625_000
        batch = next(iter(sampler))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (len(batch), batch[0].epoch, batch[0].position) == (32, 3, 20_000_002)
    assert peak < 20e6


def test_fingerprint_depends_on_chunks_and_options():
    def fingerprint(chunks=(3, 4), **options):
        options = {"shuffle_chunks": 2, "max_rows": 2, "seed": 0} | options
        return ShuffleWindowOrder(np.array(chunks), **options).fingerprint()

    others = [
        {"chunks": (4, 3)},
        {"shuffle_chunks": 3},
        {"max_rows": 3},
        {"seed": 1},
        {"shuffle": False},
        {"content": b"x"},
    ]
    assert fingerprint() == fingerprint()
    assert len({fingerprint(), *(fingerprint(**other) for other in others)}) == 7
