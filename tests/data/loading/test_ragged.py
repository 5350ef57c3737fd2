"""RaggedArray against lists of lists."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fourfold.data.loading.ragged import RaggedArray

Rows = list[list[int]]
lists_of_rows = st.lists(st.lists(st.integers(5, 99), max_size=6), min_size=1, max_size=8)


def ragged(rows: Rows) -> RaggedArray:
    ids = np.array([i for row in rows for i in row], np.int32)
    return RaggedArray.from_lengths(ids, np.array([len(row) for row in rows]))


def lists(array: RaggedArray) -> Rows:
    return [array[i].tolist() for i in range(len(array))]


@given(lists_of_rows)
def test_rows_are_indexed(rows: Rows) -> None:
    assert lists(ragged(rows)) == rows


@given(lists_of_rows, st.integers(1, 5))
def test_truncate_keeps_the_first_elements(rows: Rows, limit: int) -> None:
    assert lists(ragged(rows).truncate(limit)) == [row[:limit] for row in rows]


@given(lists_of_rows, st.sampled_from([None, 1]), st.sampled_from([None, 2]))
def test_wrap_adds_ids_at_both_ends(rows: Rows, before: int | None, after: int | None) -> None:
    expected = [[*[1] * (before or 0), *row, *[2] * (after is not None)] for row in rows]
    assert lists(ragged(rows).wrap(before, after)) == expected


@given(lists_of_rows)
def test_concat_rows_joins_rows_of_equal_number(rows: Rows) -> None:
    other = [[*row, 1] for row in reversed(rows)]
    expected = [a + b for a, b in zip(rows, other, strict=True)]
    assert lists(ragged(rows).concat_rows(ragged(other))) == expected


@given(lists_of_rows, st.data())
def test_take_and_padded_select_rows(rows: Rows, data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=5))
    selected = [rows[i] for i in chosen]
    assert lists(ragged(rows).take(np.array(chosen))) == selected
    ids, mask = ragged(rows).padded(np.array(chosen), pad_id=0)
    width = max(map(len, selected))
    assert ids.tolist() == [row + [0] * (width - len(row)) for row in selected]
    assert mask.tolist() == [[j < len(row) for j in range(width)] for row in selected]
