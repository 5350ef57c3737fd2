"""Sentence pairs out of files and hub, and parts held out without a sentence on both sides."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence

import numpy as np

from fourfold.core.errors import InputError
from fourfold.data.hub import HubConfig, read_hub
from fourfold.data.sources import Rows, read_aligned, read_table

log = logging.getLogger(__name__)


def read_pairs(
    entries: str | Sequence[str], langs: tuple[str, str], columns: Sequence[str] | None
) -> Rows:
    """Sentence pairs from files.

    Args:
        entries: one of: `[source file, target file]`, aligned by line; one or several names with
            `{lang}` in them, which stands for each language in turn; with `columns`, one or several
            tables (see `read_table`).
        langs: source and target language.
        columns: names of the source and the target column.

    Raises:
        InputError: a file is missing, empty or broken, or two files do not fit together.
    """
    entries = [entries] if isinstance(entries, str) else list(entries)
    if columns is not None:
        return Rows.join([read_table(entry, columns) for entry in entries])
    if entries and all("{lang}" in entry for entry in entries):
        pairs = [[entry.replace("{lang}", lang) for lang in langs] for entry in entries]
        return Rows.join([read_aligned(pair) for pair in pairs])
    if len(entries) == 2:
        return read_aligned(entries)
    raise InputError(
        f"{entries} does not say where the two languages are: give [source file, target file],"
        " a name with {lang} in it, or a table together with `columns`."
    )


def read_hub_pairs(
    hub: HubConfig, split: str, langs: tuple[str, str], columns: Sequence[str] | None
) -> Rows:
    """Sentence pairs from `datasets`; without `columns` in its usual form `translation.{lang}`."""
    return read_hub(hub, split, columns or [f"translation.{lang}" for lang in langs])


def hold_out(
    rows: Rows, fraction: float, salt: str, n_texts: int | None = None
) -> tuple[Rows, Rows]:
    """Splits off about `fraction` of the source sentences; no sentence stays on both sides.

    A sentence's side follows from its own characters, so it never changes when the data grow. Pairs
    left behind that share a source or a target sentence with the part split off are dropped.

    Args:
        rows: the texts.
        fraction: share of them to split off.
        salt: another one splits off others.
        n_texts: how many of the columns may not be shared, by default all; those behind them
            (labels, the second texts of classified pairs) may.

    Returns:
        The remainder and the part split off.

    Raises:
        InputError: one of the two has no row; or the fraction does not lie between 0 and 1.
    """
    held = np.array([is_held_out(text, fraction, salt) for text in rows.columns[0]])
    columns = rows.columns[:n_texts]
    taken = [{text for text, out in zip(c, held, strict=True) if out} for c in columns]
    leaks = np.array(
        [
            any(text in seen for text, seen in zip(pair, taken, strict=True))
            for pair in zip(*columns, strict=True)
        ]
    )
    if not held.any() or held.all():
        raise InputError(f"{rows.where(0)} and on: too few rows to hold out {fraction:g} of them.")
    if leaks.all():
        raise InputError(
            f"{rows.where(0)} and on: no row is left to learn from if {fraction:g} are held out,"
            " since each of the others shares a text with one of those."
        )
    if dropped := int((leaks & ~held).sum()):
        log.warning("%d training pairs share a sentence with a held-out pair: dropped.", dropped)
    return rows.select(np.flatnonzero(~leaks)), rows.select(np.flatnonzero(held))


def check_fraction(name: str, fraction: float) -> None:
    """Refuse what is no part of something.

    Raises:
        InputError: it does not lie between 0 and 1.
    """
    if not 0 < fraction < 1:
        raise InputError(f"{name} is {fraction:g}, but a part to hold out must lie between 0 and 1")


def is_held_out(text: str, fraction: float, salt: str) -> bool:
    """Whether a text is in the part split off, which follows from its characters alone.

    Raises:
        InputError: the fraction does not lie between 0 and 1.
    """
    check_fraction(salt, fraction)
    digest = hashlib.blake2b((salt + text).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64 < fraction
