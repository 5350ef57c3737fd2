"""Functions for labels: class names, class indices, regression targets and balanced subsets.

With a separator, an example has any number of labels, which the separator divides.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import numpy as np

from fourfold.core.validation import check_absent, check_range
from fourfold.data.readers.text_table import TextTable
from fourfold.errors import InputError


def split_labels(label: str, separator: str | None) -> list[str]:
    """Return the labels of an example without white space at their ends; none for an empty text.

    Example:
        >>> split_labels("war, love", ","), split_labels("war, love", None)
        (['war', 'love'], ['war, love'])
    """
    if not separator:
        return [label]
    return [part.strip() for part in label.split(separator) if part.strip()]


def label_text(names: Sequence[str] | None, label: Any) -> str:
    """Return the name of a class index, the names of several labels (K,), or a number as text."""
    if getattr(label, "ndim", 0):
        return ", ".join(name for name, x in zip(names or (), label, strict=True) if x)
    return names[int(label)] if names else str(np.float32(label))


def find_classes(labels: list[str], table: TextTable, separator: str | None = None) -> list[str]:
    """Return the distinct labels of a training split, which become the class names.

    The labels are sorted by value if all of them are numbers, otherwise alphabetically. The order
    is the same in every process. As in the other functions, `table` holds the examples and is used
    only for the location of an invalid label.

    Raises:
        InputError: If there are fewer than two labels, or if `check_labels` raises it.

    Example:
        >>> table = TextTable.from_columns([["10", "9", "9"]], "train.tsv:")
        >>> find_classes(table.columns[0], table)
        ['9', '10']
    """
    rows = [split_labels(label, separator) for label in labels]
    classes = list(dict.fromkeys(chain.from_iterable(rows)))
    if len(classes) < 2:
        message = f"training rows must have at least 2 different labels, got {classes}"
        raise InputError(message, file=table.location(0))
    check_labels(classes, lambda label: _location(label, rows, table))
    try:
        values = {label: float(label) for label in classes}
    except ValueError:
        return sorted(classes)
    # Comparisons with NaN are false in both directions, so it needs a place of its own: the end.
    is_nan = {label: math.isnan(value) for label, value in values.items()}
    return sorted(classes, key=lambda label: (is_nan[label], is_nan[label] or values[label], label))


def check_labels(labels: Iterable[str], location: Callable[[str], str]) -> None:
    """Check that no label is missing, and that no class has two spellings.

    `location` returns the location of the first example of a label.

    Raises:
        InputError: If a label is empty or has white space at an end, as in " pos", or if two labels
            are the same number, as in "1" and "1.0".
    """
    numbers: dict[float, str] = {}
    for label in labels:
        first = label
        with suppress(ValueError):
            first = label if "_" in label else numbers.setdefault(float(label), label)
        if not label.strip():
            problem = "is empty"
        elif label != label.strip():
            problem = "begins or ends with white space"
        elif label != first:
            problem = f"is the same number as the label {first!r}"
        else:
            continue
        raise InputError(f"the label {label!r} {problem}", file=location(label))


def _location(label: str, rows: list[list[str]], table: TextTable) -> str:
    return table.location(next(i for i, row in enumerate(rows) if label in row))


def encode_labels(
    labels: Sequence[str], table: TextTable, names: Sequence[str], separator: str | None = None
) -> np.ndarray:
    """Return the class index of each label, (examples,) int64.

    With a separator, return 1 for each label that an example has, and 0 for the others, (examples,
    K) float32.

    Raises:
        InputError: If a label is not in `names`.
    """
    indices = {name: index for index, name in enumerate(names)}
    rows = [split_labels(label, separator) for label in labels]
    try:
        found = [[indices[label] for label in row] for row in rows]
    except KeyError as error:
        label = error.args[0]
        message = f"the label must be one of {', '.join(names[:20])}, got {label!r}"
        raise InputError(message, file=_location(label, rows, table)) from error
    if not separator:
        return np.array(found, np.int64).reshape(-1)
    return np.array([np.isin(range(len(names)), classes) for classes in found], np.float32)


def parse_floats(labels: Sequence[str], table: TextTable) -> np.ndarray:
    """Parse the labels of a regression, (examples,) float32.

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


def parse_labels(
    labels: list[str], table: TextTable, names: Any, separator: Any = None, regression: bool = False
) -> tuple[np.ndarray, list[str]]:
    """Return the encoded labels or numbers of examples, and the class names, none for numbers.

    If `names` is None, the classes are those of the examples.
    """
    if regression:
        check_absent("a regression", label_separator=separator or None)
        return parse_floats(labels, table), []
    names = names or find_classes(labels, table, separator)
    return encode_labels(labels, table, names, separator), names


def stratified_subset(labels: np.ndarray, n_rows: int, seed: int) -> np.ndarray:
    """Sample `n_rows` training examples with balanced classes, and return their sorted indices.

    All classes have the same number of examples in the subset, or numbers that differ by one. If a
    class has too few examples, all of them are in the subset, and the other classes have more. With
    the same seed, a larger subset contains all examples of a smaller subset. If all labels are
    equal, the sample is uniform.

    Raises:
        InputError: If `n_rows` is below 1 or exceeds the number of examples.
    """
    check_range("data.train_rows", n_rows, minimum=1, maximum=len(labels))
    order = np.random.default_rng([seed, 0x5EED]).permutation(len(labels))
    rank_in_class = np.empty(len(labels), np.int64)
    by_class = order[np.argsort(labels[order], kind="stable")]
    _, first, sizes = np.unique(labels[by_class], return_index=True, return_counts=True)
    rank_in_class[by_class] = np.arange(len(labels)) - np.repeat(first, sizes)
    chosen = order[np.argsort(rank_in_class[order], kind="stable")[:n_rows]]
    return np.sort(chosen)
