"""Treatment of rows longer than max_len: error, truncation, or dropping from training."""

import logging
from collections.abc import Sequence
from typing import Literal

import numpy as np

from fourfold.core.validation import check_choice
from fourfold.data.loading.ragged import RaggedArray
from fourfold.data.readers.text_table import TextTable
from fourfold.errors import InputError

log = logging.getLogger(__name__)

TooLong = Literal["error", "truncate", "drop"]


def limit_lengths(
    columns: Sequence[RaggedArray],
    table: TextTable,
    limit: int,
    too_long: TooLong,
    split: str,
    option: str = "max_len",
) -> tuple[list[RaggedArray], TextTable]:
    """Limit every row of every column to `limit` tokens; see `rows_within_limit`.

    Args:
        columns: Token ids of the columns.
        table: Texts of the same rows.
        limit: Maximum number of tokens of a row in each column.
        too_long: "error", "truncate" or "drop", as in `rows_within_limit`.
        split: Name of the split.
        option: Option that determines the limit, for error messages.

    Returns:
        The columns, and the table of their rows.

    Raises:
        InputError: As `rows_within_limit`.
    """
    lengths = np.max([column.lengths for column in columns], axis=0)
    kept = rows_within_limit(lengths, table, limit, too_long, split, option)
    if len(kept) < len(table):
        return [column.take(kept) for column in columns], table.select(kept)
    if lengths.max(initial=0) > limit:
        columns = [column.truncate(limit) for column in columns]
    return list(columns), table


def rows_within_limit(
    lengths: np.ndarray,
    table: TextTable,
    limit: int,
    too_long: TooLong,
    split: str,
    option: str = "max_len",
) -> np.ndarray:
    """Return the numbers of the rows to keep; the caller truncates the longer rows among them.

    "drop" drops rows of the training split only. In other splits longer rows are truncated, since a
    score must include all rows.

    Args:
        lengths: (rows,) number of tokens of each row.
        table: Texts of the rows, for error messages.
        limit: Maximum number of tokens of a row.
        too_long: "error", "truncate" or "drop".
        split: Name of the split.
        option: Option that determines the limit, for error messages.

    Raises:
        InputError: If a row is too long and `too_long` is "error", or if no row is left.
    """
    check_choice("data.too_long", too_long, ["error", "truncate", "drop"])
    too_long_rows = np.flatnonzero(lengths > limit)
    all_rows = np.arange(len(table))
    if len(too_long_rows) == 0:
        return all_rows
    if too_long == "error":
        first = too_long_rows[0]
        raise InputError(
            f"the row has {lengths[first]} tokens, but {option} allows {limit}"
            f" ({len(too_long_rows)} such rows in {split}): set too_long to truncate or drop",
            file=table.location(first),
        )
    drops = too_long == "drop" and split == "train"
    action = "dropped" if drops else "truncated"
    counts = f"{len(too_long_rows)} of {len(table)}"
    log.warning("%s: %s %s rows longer than %d tokens", split, action, counts, limit)
    if not drops:
        return all_rows
    kept = np.flatnonzero(lengths <= limit)
    if len(kept) == 0:
        message = f"all rows from here on are longer than {limit} tokens"
        raise InputError(message, file=table.location(0))
    return kept
