"""Hold-out by a hash of the text: fraction, stability, no leaks, and splits from files."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.data.readers.splits import hold_out, read_rows
from fourfold.data.readers.text_table import TextTable
from fourfold.errors import InputError


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=40, max_size=90),
    st.floats(0.1, 0.5),
)
@settings(max_examples=60, deadline=None)
def test_splits_share_no_sentence(pairs: list[tuple[int, int]], fraction: float) -> None:
    columns = [[f"s{a}" for a, _ in pairs], [f"t{b}" for _, b in pairs]]
    try:
        rest, held_out = hold_out(TextTable.from_columns(columns, "x:"), fraction, "val")
    except InputError:
        return
    for left, right in zip(rest.columns, held_out.columns, strict=True):
        assert not set(left) & set(right)
    numbers = rest.number.tolist() + held_out.number.tolist()
    assert len(set(numbers)) == len(numbers)


def test_holdout_has_the_fraction_and_is_stable_when_data_grow() -> None:
    columns = [[f"s{i}" for i in range(4000)], [f"t{i}" for i in range(4000)]]
    table = TextTable.from_columns(columns, "x:")
    rest, held_out = hold_out(table, 0.1, "val")
    assert len(rest) + len(held_out) == 4000  # no text is shared, so no row is dropped
    assert len(held_out) == pytest.approx(400, abs=60)
    fewer = hold_out(table.select(np.arange(1000)), 0.1, "val")[1]
    assert fewer.columns[0] == [text for text in held_out.columns[0] if int(text[1:]) < 1000]
    assert hold_out(table, 0.1, "test")[1].columns != held_out.columns


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, 7.0])
def test_fractions_outside_the_unit_interval_are_rejected(fraction: float) -> None:
    with pytest.raises(InputError, match=f"^val must be above 0 and below 1, got {fraction:g}"):
        read_rows({"train": "a", "val": fraction}, list, str)


def test_too_few_rows_are_rejected() -> None:
    with pytest.raises(
        InputError, match=r"x:1: 1 rows have too few different texts to hold out 0\.01"
    ):
        hold_out(TextTable.from_columns([["a"], ["b"]], "x:"), 0.01, "val")


def test_a_text_shared_by_all_rows_leaves_no_training_row() -> None:
    table = TextTable.from_columns([[f"s{i}" for i in range(99)], ["yes"] * 99], "x:")
    with pytest.raises(
        InputError, match=r"too few different texts to hold out 0\.1 of them as val"
    ):
        hold_out(table, 0.1, "val")
    rest, held_out = hold_out(table, 0.1, "val", n_columns=1)
    assert len(rest) + len(held_out) == 99


def test_read_rows_concatenates_files_and_holds_out_by_key() -> None:
    rows = {"a": list(range(100)), "b": list(range(100, 200))}
    sources = {"train": ["a", "b"], "val": 0.2, "test": "b"}
    splits = read_rows(sources, rows.__getitem__, lambda row: str(row // 2))
    assert sorted(splits["train"] + splits["val"]) == list(range(200))
    assert not {row // 2 for row in splits["train"]} & {row // 2 for row in splits["val"]}
    assert splits["test"] == rows["b"]
    with pytest.raises(InputError, match=r"test must name files .*, got \[\]"):
        read_rows({"train": "a", "test": []}, rows.__getitem__, str)
