"""Train, validation and test splits from files; hold-out by a hash of the text, without leaks."""

import hashlib
import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np

from fourfold.data.readers.text_table import TextTable
from fourfold.errors import InputError

log = logging.getLogger(__name__)

# The float comes first, so that jsonargparse parses `--data.val 0.1` as a number.
SplitSource = float | str | list[str] | None
T = TypeVar("T")


def read_splits(
    sources: Mapping[str, SplitSource], read: Callable[[str], list[T]], key: Callable[[T], str]
) -> dict[str, list[T]]:
    """Read the rows of each split that is given.

    Args:
        sources: Source of each split, "train" first: one or several files, or the fraction of the
            training rows to hold out.
        read: Function that reads the rows of a file.
        key: Function that returns the text by which a row is held out; rows with equal texts stay
            in one split.

    Raises:
        InputError: As `read`; or if a split has no rows.
    """
    splits: dict[str, list[T]] = {}
    for name, source in sources.items():
        if isinstance(source, float):
            sides: tuple[list[T], list[T]] = ([], [])
            for row in splits["train"]:
                sides[in_holdout(key(row), source, name)].append(row)
            splits["train"], splits[name] = sides
            if not all(sides):
                message = f"{sources['train']} has too few rows to hold out {source:g} of them"
                raise InputError(f"must be another fraction: {message}", option=name)
        elif source is not None:
            files = [source] if isinstance(source, str) else source
            splits[name] = [row for file in files for row in read(file)]
            if not splits[name]:
                raise InputError(f"must name files with rows, got {source}", option=name)
    return splits


def reject_splits_for_builtin(sources: Mapping[str, SplitSource]) -> None:
    """Raise InputError if a split is named although built-in data have their own splits."""
    for name, source in sources.items():
        if source is not None:
            raise InputError(
                f"must be null for source: builtin, which has its own splits, got {source}:"
                " set source to files or hub",
                option=name,
            )


def hold_out(
    table: TextTable, fraction: float, name: str, n_columns: int | None = None
) -> tuple[TextTable, TextTable]:
    """Hold out about `fraction` of the texts in the first column, without leaks.

    The split of a text follows from its characters alone, so it never changes when the data grow.
    Remaining rows that share a text with the held-out rows are dropped.

    Args:
        table: Rows to split.
        fraction: Fraction to hold out.
        name: Name of the new split; another name holds out other rows.
        n_columns: Number of columns whose texts may not be shared, by default all; later columns
            (labels, second sentences) may be.

    Returns:
        The remaining rows and the held-out rows.

    Raises:
        InputError: If one side has no rows, or if `fraction` does not lie between 0 and 1.
    """
    held_out = np.array([in_holdout(text, fraction, name) for text in table.columns[0]])
    columns = table.columns[:n_columns]
    taken = [
        {text for text, is_out in zip(column, held_out, strict=True) if is_out}
        for column in columns
    ]
    leaks = np.array(
        [
            any(text in seen for text, seen in zip(row, taken, strict=True))
            for row in zip(*columns, strict=True)
        ]
    )
    if not held_out.any() or held_out.all():
        message = f"{len(table)} rows are too few to hold out {fraction:g} of them as {name}"
        raise InputError(message, file=table.location(0))
    if leaks.all():
        raise InputError(
            f"no training row is left if {fraction:g} are held out as {name}, since each of the"
            " others shares a text with a held-out row",
            file=table.location(0),
        )
    if n_dropped := int((leaks & ~held_out).sum()):
        log.warning("dropped %d training rows that share a text with a held-out row", n_dropped)
    return table.select(np.flatnonzero(~leaks)), table.select(np.flatnonzero(held_out))


def check_holdout_fraction(name: str, fraction: float) -> None:
    """Raise InputError unless `fraction` lies between 0 and 1."""
    if not 0 < fraction < 1:
        raise InputError(
            f"must lie between 0 and 1 to hold out rows, got {fraction:g}", option=name
        )


def in_holdout(text: str, fraction: float, name: str) -> bool:
    """Return True if a text is held out as split `name`, by a hash of its characters.

    Raises:
        InputError: If `fraction` does not lie between 0 and 1.
    """
    check_holdout_fraction(name, fraction)
    digest = hashlib.blake2b((name + text).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64 < fraction
