"""Functions that read training, validation and test splits, and hold out rows by a text hash.

The source of a split is one or several paths (or names of hub splits), a fraction of the training
examples to hold out, or None if there is no such split. Fractions are held out one after the other,
each of the training examples that remain.
"""

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, TypeVar

import numpy as np

from fourfold.core.validation import check_range
from fourfold.data.readers.text_table import TextTable
from fourfold.errors import InputError

log = logging.getLogger(__name__)

Source = Literal["builtin", "files", "hub"]
# The float comes first, so that jsonargparse parses `--data.val 0.1` as a number.
SplitSource = float | str | list[str] | None
T = TypeVar("T")


def read_tables(
    source: str,
    split_sources: Mapping[str, SplitSource],
    builtin: Callable[[], dict[str, T]],
    read: Callable[[list[str]], T],
    divide: Callable[[T, float, str], tuple[T, T]],
    needs_train: bool = True,
) -> dict[str, T]:
    """Read the splits of built-in data, of files or of the Hugging Face hub.

    Args:
        source: "builtin", "files" or "hub".
        split_sources: Source of each split, by name. If `source` is "builtin", all must be None.
        builtin: Function that returns the table of each split of the built-in data.
        read: Function that reads one split, given a list of paths or of names of hub splits.
        divide: Function that holds out examples, such as `hold_out`. Its arguments are the training
            examples, the fraction and the name of the new split.
        needs_train: True requires the training split. False requires at least one split.

    Raises:
        InputError: If `source` is unknown, if `source` is "builtin" and one of `split_sources` is
            not None, if a required split is missing, or if `read` or `divide` raises it.
    """
    named = {name: given for name, given in split_sources.items() if given is not None}
    if source == "builtin":
        for name, given in named.items():
            raise InputError(f"must be null for source: builtin, got {given}", option=name)
        return builtin()
    if "train" not in named and (needs_train or not named):
        raise InputError(f"must be given for source: {source}", option="data.train")
    return read_splits(named, read, divide)


def read_splits(
    sources: Mapping[str, SplitSource],
    read: Callable[[list[str]], T],
    divide: Callable[[T, float, str], tuple[T, T]],
) -> dict[str, T]:
    """Read the examples of each split that has a source; the arguments are those of `read_tables`.

    Raises:
        InputError: If the list of files of a split is empty, if a fraction has no training split
            before it in `sources`, or if `read` or `divide` raises it.
    """
    splits: dict[str, T] = {}
    for name, source in sources.items():
        if isinstance(source, float) and "train" in splits:
            check_range(name, source, above=0.0, below=1.0)
            splits["train"], splits[name] = divide(splits["train"], source, name)
        elif isinstance(source, float) or source == []:
            message = f"must name files without a training split, got {source}"
            raise InputError(message, option=f"data.{name}")
        elif source is not None:
            splits[name] = read([source] if isinstance(source, str) else source)
    return splits


def read_rows(
    sources: Mapping[str, SplitSource], read: Callable[[str], list[T]], key: Callable[[T], str]
) -> dict[str, list[T]]:
    """Read the list of examples of each split. An example may be any object.

    Args:
        sources: Source of each split, by name.
        read: Function that reads the examples of one file.
        key: Function from an example to a text, such as the context of a question. If a fraction is
            held out, examples with equal texts stay in one split.
    """

    def divide(rows: list[T], fraction: float, name: str) -> tuple[list[T], list[T]]:
        table = TextTable.from_columns([[key(row) for row in rows]], "training row ", 0)
        rest, held_out = hold_out(table, fraction, name)
        return [rows[i] for i in rest.number], [rows[i] for i in held_out.number]

    return read_splits(sources, lambda files: [row for file in files for row in read(file)], divide)


def hold_out(
    table: TextTable, fraction: float, name: str, n_columns: int | None = None
) -> tuple[TextTable, TextTable]:
    """Divide a table into remaining and held-out rows, by a hash of the text in the first column.

    A row is held out if the hash, a number in [0, 1), is below `fraction`. A row therefore stays in
    its split when other rows are added to the data. A remaining row is dropped if it has the same
    text as a held-out row in one of the first `n_columns` columns.

    Args:
        table: Training examples, one in each row.
        fraction: Approximate fraction of the distinct texts in the first column to hold out.
        name: Name of the new split, which is hashed together with the text.
        n_columns: Number of columns, from the first, whose texts must not be in both splits. The
            other columns, such as labels, may have equal texts. None means all columns.

    Raises:
        InputError: If no row would remain or be held out.
    """
    held_out = np.array([unit_hash(name + text) < fraction for text in table.columns[0]])
    leaks = np.zeros(len(table), bool)
    for column in table.columns[:n_columns]:
        taken = {text for text, is_out in zip(column, held_out, strict=True) if is_out}
        leaks |= np.array([text in taken for text in column])
    if not held_out.any() or leaks.all():
        message = f"{len(table)} rows have too few different texts to hold out {fraction:g} of them"
        raise InputError(f"{message} as {name}", file=table.location(0))
    if n_dropped := int((leaks & ~held_out).sum()):
        log.warning("dropped %d training rows that share a text with a held-out row", n_dropped)
    return table.select(np.flatnonzero(~leaks)), table.select(np.flatnonzero(held_out))


def unit_hash(text: str, more: Iterable[str] = ()) -> float:
    """Return a hash of a text as a number in [0, 1), which is uniformly distributed over texts.

    The text may continue in the blocks `more`.
    """
    hashed = hashlib.blake2b(text.encode(), digest_size=8)
    for block in more:
        hashed.update(block.encode())
    return int.from_bytes(hashed.digest(), "big") / 2**64
