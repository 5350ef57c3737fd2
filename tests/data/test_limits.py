import logging

import numpy as np
import pytest

from fourfold.core.errors import InputError
from fourfold.data.limits import fit_lengths
from fourfold.data.ragged import Ragged
from fourfold.data.sources import Rows


def columns():
    return [
        Ragged.from_lengths(np.arange(9), np.array([2, 4, 3])),
        Ragged.from_lengths(np.arange(7), np.array([5, 1, 1])),
    ]


ROWS = Rows.of([["a", "b", "c"], ["x", "y", "z"]], "t.en, line")


def test_error_names_file_line_and_length():
    with pytest.raises(InputError, match=r"t.en, line 1 has 5 tokens, but max_len allows 3 \(2 su"):
        fit_lengths(columns(), ROWS, 3, "error", "train")


def test_truncate_keeps_every_row(caplog):
    with caplog.at_level(logging.WARNING):
        cut, rows = fit_lengths(columns(), ROWS, 3, "truncate", "train")
    assert [c.lengths.tolist() for c in cut] == [[2, 3, 3], [3, 1, 1]]
    assert rows is ROWS
    assert caplog.messages == ["train: 2 of 3 rows longer than 3 tokens truncated."]


def test_drop_drops_the_pair_in_training_only(caplog):
    with caplog.at_level(logging.WARNING):
        cut, rows = fit_lengths(columns(), ROWS, 3, "drop", "train")
        assert [c.lengths.tolist() for c in cut] == [[3], [1]]
        assert rows.columns == [["c"], ["z"]]
        assert rows.where(0) == "t.en, line 3"
        cut, rows = fit_lengths(columns(), ROWS, 3, "drop", "test")
    assert len(rows) == len(cut[0]) == 3
    assert caplog.messages == [
        "train: 2 of 3 rows longer than 3 tokens dropped.",
        "test: 2 of 3 rows longer than 3 tokens truncated.",
    ]


def test_nothing_is_said_when_nothing_is_too_long(caplog):
    with caplog.at_level(logging.WARNING):
        assert fit_lengths(columns(), ROWS, 5, "error", "train")[1] is ROWS
    assert not caplog.messages


def test_nothing_left_and_unknown_choice():
    with pytest.raises(InputError, match="every row is longer than 0 tokens"):
        fit_lengths(columns(), ROWS, 0, "drop", "train")
    with pytest.raises(InputError, match="not 'cut'"):
        fit_lengths(columns(), ROWS, 9, "cut", "train")
