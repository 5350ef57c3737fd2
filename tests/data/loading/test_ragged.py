import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fourfold.data.ragged import Ragged

rows_of = st.lists(st.lists(st.integers(5, 99), max_size=6), min_size=1, max_size=8)


def ragged(rows):
    return Ragged.from_lengths(
        np.array([i for row in rows for i in row], np.int32), np.array([len(r) for r in rows])
    )


def lists(data):
    return [data[i].tolist() for i in range(len(data))]


@given(rows_of)
def test_rows_come_back(rows):
    assert lists(ragged(rows)) == rows


@given(rows_of, st.integers(1, 5))
def test_truncate(rows, limit):
    assert lists(ragged(rows).truncate(limit)) == [row[:limit] for row in rows]


@given(rows_of, st.sampled_from([None, 1]), st.sampled_from([None, 2]))
def test_wrap(rows, before, after):
    expected = [[*[1] * (before or 0), *row, *[2] * (after is not None)] for row in rows]
    assert lists(ragged(rows).wrap(before, after)) == expected


@given(rows_of, st.data())
def test_take_and_padded(rows, data):
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=5))
    picked = [rows[i] for i in chosen]
    assert lists(ragged(rows).take(np.array(chosen))) == picked
    ids, mask = ragged(rows).padded(np.array(chosen), pad_id=0)
    width = max(map(len, picked))
    assert ids.tolist() == [row + [0] * (width - len(row)) for row in picked]
    assert mask.tolist() == [[j < len(row) for j in range(width)] for row in picked]
