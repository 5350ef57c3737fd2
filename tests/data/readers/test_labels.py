"""Labels: errors with the location of the row."""

import json
import math
import os
import subprocess
import sys

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
    message = r"x.tsv:2: training rows must have at least 2 different labels, got \["
    with pytest.raises(InputError, match=f"{message}'a'\\]"):
        find_classes(["a", "a"], TABLE)
    with pytest.raises(InputError, match=f"{message}'a'\\]"):
        find_classes(["", "a"], TABLE, ",")
    with pytest.raises(InputError, match=f"{message}\\]"):
        find_classes(["", ","], TABLE, ",")


# Writes the class names of label sets, given as JSON, as JSON.
FIND_CLASSES = """
import json, sys
from fourfold.data.readers.labels import find_classes
from fourfold.data.readers.text_table import TextTable
for labels in json.load(sys.stdin):
    print(json.dumps(find_classes(labels, TextTable.from_columns([labels], "x:"))))
"""
WORDS = [
    "nan",
    "NaN",
    "-nan",
    "inf",
    "-inf",
    "0",
    "1",
    "-1.5",
    "1e3",
    "a",
    "A",
    "é",
    "字",
    "_",
    "1_0",
]


def test_the_order_of_classes_does_not_depend_on_the_hash_seed_or_the_order_of_rows() -> None:
    rng = np.random.default_rng(0)
    sets = [rng.choice(WORDS, n, replace=False).tolist() for n in rng.integers(2, 9, 400)]
    found = {}
    for seed in ("0", "1", "2"):
        shuffled = [rng.permutation(labels).tolist() for labels in sets]
        command = [sys.executable, "-c", FIND_CLASSES]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        given = json.dumps(shuffled)
        ended = subprocess.run(
            command, input=given, text=True, capture_output=True, env=environment
        )
        assert ended.returncode == 0, ended.stderr
        found[seed] = ended.stdout
    assert found["0"] == found["1"] == found["2"]
    for labels, line in zip(sets, found["0"].splitlines(), strict=True):
        names = json.loads(line)
        assert sorted(names) == sorted(labels)
        try:
            values = [float(name) for name in names]
        except ValueError:
            assert names == sorted(labels)
        else:  # as before for sets without NaN, whose place is the end
            numbers = [value for value in values if not math.isnan(value)]
            assert np.array_equal(values[: len(numbers)], sorted(numbers))


def test_nan_follows_the_numbers() -> None:
    labels = ["1", "nan", "0"]
    table = TextTable.from_columns([labels], "x.csv, row ", 2)
    assert find_classes(labels, table) == ["0", "1", "nan"]
