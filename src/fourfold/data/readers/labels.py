"""Functions for labels: class names, class indices, regression targets and balanced subsets."""

import math
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from fourfold.core.validation import check_range
from fourfold.data.readers.text_table import TextTable
from fourfold.errors import InputError


def find_classes(labels: Sequence[str], location: str) -> list[str]:
    """Return the distinct labels of a training split, which become the class names.

    The labels are sorted by value if all of them are numbers, otherwise alphabetically.

    Args:
        labels: Labels of the training examples, at least one.
        location: Location of the first example, such as "train.tsv:2", for the error message.

    Raises:
        InputError: If all labels are equal.

    Example:
        >>> find_classes(["10", "9", "9"], "train.tsv:2")
        ['9', '10']
    """
    classes = set(labels)
    if len(classes) < 2:
        raise InputError(f"all training rows have the label {labels[0]!r}", file=location)
    try:
        return sorted(classes, key=lambda label: (float(label), label))
    except ValueError:
        return sorted(classes)


def encode_labels(labels: Sequence[str], table: TextTable, names: Sequence[str]) -> np.ndarray:
    """Return the class index of each label.

    Args:
        labels: Class name of each example.
        table: Table of the examples; used only for the location of an invalid label in the error
            message.
        names: Names of all classes, in the order of their indices.

    Returns:
        Class index of each example, (examples,) int64.

    Raises:
        InputError: If a label is not in `names`.
    """
    indices = {name: index for index, name in enumerate(names)}
    try:
        return np.array([indices[label] for label in labels], np.int64)
    except KeyError as error:
        label = error.args[0]
        message = f"the label must be one of {', '.join(names[:20])}, got {label!r}"
        raise InputError(message, file=table.location(labels.index(label))) from error


def parse_floats(labels: Sequence[str], table: TextTable) -> np.ndarray:
    """Parse the labels of a regression.

    Args:
        labels: Label of each example, as text.
        table: Table of the examples; used only for the location of an invalid label in the error
            message.

    Returns:
        Value of each label, (examples,) float32.

    Raises:
        InputError: If a label is not a finite number.
    """
    values = np.full(len(labels), math.nan, np.float32)
    for row, label in enumerate(labels):
        with suppress(ValueError):
            values[row] = float(label)
        if not math.isfinite(values[row]):
            message = f"the label must be a finite number, got {label!r}"
            raise InputError(message, file=table.location(row))
    return values


def stratified_subset(labels: np.ndarray, n_rows: int, seed: int) -> np.ndarray:
    """Sample a class-balanced subset of the training examples.

    All classes have the same number of examples in the subset, or numbers that differ by one. If a
    class has too few examples, all of them are in the subset, and the other classes have more. With
    the same seed, a larger subset contains all examples of a smaller subset.

    Args:
        labels: (examples,) class index of each training example. If the examples have no classes,
            all values are 0, and the sample is uniform.
        n_rows: Number of examples to sample.
        seed: Seed of the sample.

    Returns:
        (n_rows,) sorted indices of the sampled examples.

    Raises:
        InputError: If `n_rows` is below 1 or exceeds the number of examples.
    """
    check_range("data.train_rows", n_rows, minimum=1, maximum=len(labels))
    order = np.random.default_rng([seed, 0x5EED]).permutation(len(labels))
    rank_in_class = np.empty(len(labels), np.int64)
    for value in np.unique(labels):
        rows = order[labels[order] == value]
        rank_in_class[rows] = np.arange(len(rows))
    chosen = order[np.argsort(rank_in_class[order], kind="stable")[:n_rows]]
    return np.sort(chosen)
