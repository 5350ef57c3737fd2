"""Labels: errors with the location of the row."""

import numpy as np
import pytest

from fourfold.data.readers.labels import encode_labels, find_classes, parse_floats
from fourfold.data.readers.text_table import TextTable
from fourfold.errors import InputError

TABLE = TextTable.from_columns([["a", "b"]], "x.tsv:", 2)


def test_labels_become_indices_of_class_names() -> None:
    assert encode_labels(["pos", "neg"], TABLE, ["neg", "pos"]).tolist() == [1, 0]
    with pytest.raises(InputError, match=r"x.tsv:3: .*must be one of neg, pos, got 'other'"):
        encode_labels(["pos", "other"], TABLE, ["neg", "pos"])


def test_labels_of_a_regression_become_floats() -> None:
    values = parse_floats(["1.5", "-2"], TABLE)
    assert values.tolist() == [1.5, -2.0]
    assert values.dtype == np.float32


@pytest.mark.parametrize("label", ["inf", "nan", "high", ""])
def test_labels_that_are_no_finite_numbers_are_rejected(label: str) -> None:
    with pytest.raises(InputError, match=r"x.tsv:3: .*must be a finite number"):
        parse_floats(["1", label], TABLE)


def test_a_single_class_is_rejected() -> None:
    with pytest.raises(InputError, match=r"x.tsv:2: all training rows have the label 'a'"):
        find_classes(["a", "a"], TABLE.location(0))
