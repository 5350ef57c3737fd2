"""Rows longer than max_len: error, truncation, and dropping in training only."""

import logging

import numpy as np
import pytest

from fourfold.data.loading.ragged import RaggedArray
from fourfold.data.readers.text_table import TextTable
from fourfold.data.readers.truncation import limit_lengths
from fourfold.errors import InputError

TABLE = TextTable.from_columns([["a", "b", "c"], ["x", "y", "z"]], "t.en:")


def columns() -> list[RaggedArray]:
    return [
        RaggedArray.from_lengths(np.arange(9), np.array([2, 4, 3])),
        RaggedArray.from_lengths(np.arange(7), np.array([5, 1, 1])),
    ]


def test_error_has_location_and_length() -> None:
    message = r"t.en:1: the row has 5 tokens, but max_len allows 3 \(2 such rows in train\)"
    with pytest.raises(InputError, match=message):
        limit_lengths(columns(), TABLE, 3, "error", "train")


def test_truncation_keeps_every_row(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        limited, table = limit_lengths(columns(), TABLE, 3, "truncate", "train")
    assert [column.lengths.tolist() for column in limited] == [[2, 3, 3], [3, 1, 1]]
    assert table is TABLE
    assert caplog.messages == ["train: truncated 2 of 3 rows longer than 3 tokens"]


def test_rows_are_dropped_from_training_and_truncated_elsewhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        limited, table = limit_lengths(columns(), TABLE, 3, "drop", "train")
        assert [column.lengths.tolist() for column in limited] == [[3], [1]]
        assert table.columns == [["c"], ["z"]]
        assert table.location(0) == "t.en:3"
        limited, table = limit_lengths(columns(), TABLE, 3, "drop", "test")
    assert len(table) == len(limited[0]) == 3
    assert [message.split()[:2] for message in caplog.messages] == [
        ["train:", "dropped"],
        ["test:", "truncated"],
    ]


def test_rows_within_the_limit_give_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert limit_lengths(columns(), TABLE, 5, "error", "train")[1] is TABLE
    assert not caplog.messages


def test_no_remaining_row_is_rejected() -> None:
    with pytest.raises(InputError, match="all rows are longer than 0 tokens"):
        limit_lengths(columns(), TABLE, 0, "drop", "train")
