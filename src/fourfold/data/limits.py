"""What happens to rows that are longer than a model can read: one clear choice, never silent."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal

import numpy as np

from fourfold.core.errors import InputError
from fourfold.data.ragged import Ragged
from fourfold.data.sources import Rows

log = logging.getLogger(__name__)

TooLong = Literal["error", "truncate", "drop"]


def fit_lengths(
    columns: Sequence[Ragged],
    rows: Rows,
    limit: int,
    too_long: TooLong,
    split: str,
    option: str = "max_len",
) -> tuple[list[Ragged], Rows]:
    """Makes every row of every column at most `limit` ids long.

    Args:
        columns: the encoded columns.
        rows: the texts they were encoded from.
        limit: allowed length.
        too_long: "error", "truncate" or "drop", as `rows_that_fit`.
        split: name of the split.
        option: what the limit follows from.

    Returns:
        The columns, and the rows they belong to.

    Raises:
        InputError: as `rows_that_fit`.
    """
    lengths = np.max([column.lengths for column in columns], axis=0)
    kept = rows_that_fit(lengths, rows, limit, too_long, split, option)
    if len(kept) < len(rows):
        return [column.take(kept) for column in columns], rows.select(kept)
    if lengths.max(initial=0) <= limit:
        return list(columns), rows
    return [column.truncate(limit) for column in columns], rows


def rows_that_fit(
    lengths: np.ndarray,
    rows: Rows,
    limit: int,
    too_long: TooLong,
    split: str,
    option: str = "max_len",
) -> np.ndarray:
    """The numbers of the rows to keep; those among them that are too long are to be truncated.

    With "drop" only training rows are dropped. Rows of other splits are truncated instead: a score
    must count the sentences that are hard, too.

    Args:
        lengths: (rows,) ids of each.
        rows: where they come from.
        limit: allowed length.
        too_long: "error", "truncate" or "drop".
        split: name of the split.
        option: what the limit follows from.

    Raises:
        InputError: a row is too long and `too_long` is "error", or no row is left.
    """
    if too_long not in ("error", "truncate", "drop"):
        raise InputError(f"too_long must be error, truncate or drop, not {too_long!r}.")
    long = np.flatnonzero(lengths > limit)
    everything = np.arange(len(rows))
    if len(long) == 0:
        return everything
    if too_long == "error":
        raise InputError(
            f"{rows.where(long[0])} has {lengths[long[0]]} tokens, but {option} allows {limit}"
            f" ({len(long)} such rows in {split}): set too_long to truncate or drop."
        )
    drop = too_long == "drop" and split == "train"
    word = "dropped" if drop else "truncated"
    log.warning(
        "%s: %d of %d rows longer than %d tokens %s.", split, len(long), len(rows), limit, word
    )
    if not drop:
        return everything
    kept = np.flatnonzero(lengths <= limit)
    if len(kept) == 0:
        raise InputError(f"{rows.where(0)} and on: every row is longer than {limit} tokens.")
    return kept
