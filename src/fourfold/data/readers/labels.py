"""Labels: class names, class indices, targets of a regression, and stratified subsets."""

import math
from collections.abc import Sequence

import numpy as np

from fourfold.data.readers.text_table import TextTable
from fourfold.errors import InputError


def find_classes(labels: Sequence[str], location: str) -> list[str]:
    """Return the distinct labels, sorted by value if all are numbers, otherwise alphabetically.

    Args:
        labels: Labels of the training rows.
        location: Location of the first row, for the error message.

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
    """Return the index of each label in `names`, (rows,) int64.

    Raises:
        InputError: If a label is not in `names`; the message has the location of the row in
            `table`.
    """
    indices = {name: index for index, name in enumerate(names)}
    for row, label in enumerate(labels):
        if label not in indices:
            message = f"the label must be one of {', '.join(names[:20])}, got {label!r}"
            raise InputError(message, file=table.location(row))
    return np.array([indices[label] for label in labels], np.int64)


def parse_floats(labels: Sequence[str], table: TextTable) -> np.ndarray:
    """Return the targets of a regression, (rows,) float32.

    Raises:
        InputError: If a label is not a finite number; the message has the location of the row in
            `table`.
    """
    values = np.zeros(len(labels), np.float32)
    for row, label in enumerate(labels):
        try:
            values[row] = float(label)
        except ValueError:
            values[row] = math.nan
        if not math.isfinite(values[row]):
            message = f"the label must be a finite number, got {label!r}"
            raise InputError(message, file=table.location(row))
    return values


def stratified_subset(labels: np.ndarray, n_rows: int, seed: int) -> np.ndarray:
    """Return the sorted numbers of sampled rows, with as equal class counts as possible.

    With the same seed, a larger subset contains all rows of a smaller subset.

    Args:
        labels: (rows,) class of each row.
        n_rows: Number of rows to sample.
        seed: Seed of the sample.

    Raises:
        InputError: If `n_rows` is below 1 or exceeds the number of rows.
    """
    if not 1 <= n_rows <= len(labels):
        message = f"must lie between 1 and the {len(labels)} training rows, got {n_rows}"
        raise InputError(message, option="data.train_rows")
    order = np.random.default_rng([seed, 0x5EED]).permutation(len(labels))
    rank_in_class = np.empty(len(labels), np.int64)
    for value in np.unique(labels):
        rows = order[labels[order] == value]
        rank_in_class[rows] = np.arange(len(rows))
    chosen = order[np.argsort(rank_in_class[order], kind="stable")[:n_rows]]
    return np.sort(chosen)
