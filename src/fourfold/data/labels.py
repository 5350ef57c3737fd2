"""From labels as they are written to the numbers that a loss needs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from fourfold.core.errors import InputError
from fourfold.data.sources import Rows


def find_classes(labels: Iterable[str], where: str = "") -> list[str]:
    """The different labels in order: by value if all are numbers, else by their letters.

    Args:
        labels: of the training rows.
        where: their first row, for messages.

    Raises:
        InputError: there is only one.
    """
    found = set(labels)
    if len(found) < 2:
        begin = f"{where} and on: all" if where else "All"
        raise InputError(f"{begin} training rows have the label {next(iter(found), None)!r}.")
    try:
        values = {label: float(label) for label in found}
    except ValueError:
        return sorted(found)
    return sorted(found, key=lambda label: (values[label], label))


def class_numbers(labels: Sequence[str], rows: Rows, names: Sequence[str]) -> np.ndarray:
    """(rows,) int64: the place of each label in `names`.

    Raises:
        InputError: a label is none of them (names file and line).
    """
    places = {name: number for number, name in enumerate(names)}
    for row, label in enumerate(labels):
        if label not in places:
            raise InputError(
                f"{rows.where(row)}: the label {label!r} is none of {', '.join(names[:20])}."
            )
    return np.array([places[label] for label in labels], np.int64)


def numbers(labels: Sequence[str], rows: Rows) -> np.ndarray:
    """(rows,) float32: labels of a regression.

    Raises:
        InputError: a label is no finite number (names file and line).
    """
    found = np.zeros(len(labels), np.float32)
    for row, label in enumerate(labels):
        try:
            found[row] = float(label)
        except ValueError:
            found[row] = math.nan
        if not math.isfinite(found[row]):
            raise InputError(f"{rows.where(row)}: the label {label!r} is not a number.")
    return found


def draw(labels: np.ndarray, n_rows: int, seed: int) -> np.ndarray:
    """`n_rows` row numbers, as many of each class as can be; a smaller draw is part of a larger.

    Raises:
        InputError: there are not so many rows.
    """
    if not 1 <= n_rows <= len(labels):
        raise InputError(f"train_rows is {n_rows}, but there are {len(labels)} training rows.")
    order = np.random.default_rng([seed, 0x5EED]).permutation(len(labels))
    rank = np.empty(len(labels), np.int64)  # the how-manieth of its class in that order
    for value in np.unique(labels):
        own = order[labels[order] == value]
        rank[own] = np.arange(len(own))
    chosen = order[np.argsort(rank[order], kind="stable")[:n_rows]]
    return np.sort(chosen)
