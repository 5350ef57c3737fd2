"""Treatment of examples with too many tokens: error, truncation or dropping."""

import logging
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

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
    *,
    lengths: np.ndarray | None = None,
    **options: str,
) -> tuple[list[RaggedArray], TextTable]:
    """Truncate or drop examples with more than `limit` tokens, or raise an error.

    Args:
        columns: Token ids of the texts; array i has text i of every example, such as the source and
            the target of a translation.
        table: Table with a row for each example, for error messages and for the result.
        limit: Maximum number of tokens.
        too_long: Treatment of longer examples. "error" raises InputError. "truncate" keeps the
            first `limit` tokens of every text. "drop" drops the example from "train", but equals
            "truncate" in "val" and "test", because a score must include all examples.
        split: Name of the split.
        lengths: (examples,) number of tokens of each example, which is compared with `limit`; by
            default that of its longest text. If these are sums over several texts, a truncated
            example may remain longer than `limit`, and the caller must shorten it.
        options: `option` and `unit` of `rows_within_limit`.

    Returns:
        Token ids and table of the remaining examples. Truncation does not change the table.

    Raises:
        InputError: If an example is too long and `too_long` is "error", or if no example is left.
    """
    if lengths is None:
        lengths = np.max([column.lengths for column in columns], axis=0)
    kept = rows_within_limit(lengths, table.location, limit, too_long, split, **options)
    if len(kept) < len(table):
        return [column.take(kept) for column in columns], table.select(kept)
    is_truncated = lengths.max(initial=0) > limit
    return [c.truncate(limit) if is_truncated else c for c in columns], table


def rows_within_limit(
    lengths: np.ndarray,
    location: Callable[[int], str],
    limit: int,
    too_long: TooLong,
    split: str,
    *,
    option: str = "max_len",
    unit: str = "tokens",
) -> np.ndarray:
    """Return the indices of the examples that remain; see `limit_lengths`.

    With "truncate", all examples remain, and the caller must truncate them. `location` returns the
    location of an example, `option` is the name of the option that sets the limit, and `unit` is
    the unit of the lengths, all for messages.
    """
    too_long_rows = np.flatnonzero(lengths > limit)
    if len(too_long_rows) == 0:
        return np.arange(len(lengths))
    if too_long == "error":
        first = int(too_long_rows[0])
        raise InputError(
            f"the row has {lengths[first]} {unit}, but {option} allows {limit}"
            f" ({len(too_long_rows)} such rows in {split}): set too_long to truncate or drop",
            file=location(first),
        )
    drops = too_long == "drop" and split == "train"
    action = "dropped" if drops else "truncated"
    counts = f"{len(too_long_rows)} of {len(lengths)}"
    log.warning("%s: %s %s rows longer than %d %s", split, action, counts, limit, unit)
    kept = np.flatnonzero(lengths <= limit) if drops else np.arange(len(lengths))
    if len(kept) == 0:
        raise InputError(f"all rows are longer than {limit} {unit}", file=location(0))
    return kept
