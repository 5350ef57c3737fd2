"""Splits out of files: named ones, and parts of the training rows that are held out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from fourfold.core.errors import InputError
from fourfold.data.pairs import is_held_out

# A number first, so that `--data.val 0.1` is one.
Part = float | str | list[str] | None
T = TypeVar("T")


def read_parts(
    parts: Mapping[str, Part], read: Callable[[str], list[T]], key: Callable[[T], str]
) -> dict[str, list[T]]:
    """The rows of each split that is given.

    Args:
        parts: for "train", then "val" and "test", one or several files, or a share of the training
            rows to hold out.
        read: the rows of a file.
        key: what of a row decides on which side it is: rows of one key stay together.

    Raises:
        InputError: as `read`; or a split has no rows.
    """
    found: dict[str, list[T]] = {}
    for name, part in parts.items():
        if isinstance(part, float):
            sides: tuple[list[T], list[T]] = ([], [])
            for row in found["train"]:
                sides[is_held_out(key(row), part, name)].append(row)
            found["train"], found[name] = sides
        elif part is not None:
            files = [part] if isinstance(part, str) else part
            found[name] = [row for file in files for row in read(file)]
        if name in found and not (found[name] and found["train"]):
            whole = parts["train"] if isinstance(part, float) else part
            why = f"too few rows to hold out {part:g}" if isinstance(part, float) else "no row"
            raise InputError(f"{name}: {why} of {whole}.")
    return found


def check_embedded(parts: Mapping[str, Part]) -> None:
    """What is embedded has its own splits: named ones would be passed over in silence.

    Raises:
        InputError: One is named.
    """
    for name, part in parts.items():
        if part is not None:
            raise InputError(
                f"{name} is {part}, but source is embedded, which has its own splits: give"
                " --data.source files, or hub"
            )
