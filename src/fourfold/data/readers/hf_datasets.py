"""Text from the Hugging Face hub, or from anything else that `datasets.load_dataset` reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from fourfold.core.errors import InputError
from fourfold.data.sources import Rows, pick


@dataclass(frozen=True)
class HubConfig:
    """A data set that `datasets` knows.

    Args:
        path: its name on the hub, a local folder, or a builder like "json" (with data_files in
            options).
        name: its configuration, like "de-en" or "wikitext-103-raw-v1".
        rows: read at most so many rows of each split.
        streaming: fetch only the rows that are read, not the whole data set first.
        options: further arguments of `load_dataset`, like data_files or revision.
    """

    path: str
    name: str | None = None
    rows: int | None = None
    streaming: bool = False
    options: dict[str, Any] = field(default_factory=dict)


def from_hub(source: str, hub: HubConfig | None, split: object) -> tuple[HubConfig, str]:
    """What to read of a split whose `source` is neither embedded nor files: `hub`.

    Raises:
        InputError: `source` is another word; or the hub's data or the split are not named.
    """
    if source != "hub":
        raise InputError(f"source must be embedded, files or hub, not {source!r}.")
    if hub is None or not isinstance(split, str):
        raise InputError("source: hub needs `hub: {path: ...}` and names of splits.")
    return hub, split


def read_hub(config: HubConfig, split: str, columns: Sequence[str]) -> Rows:
    """The columns of one split, like "train" or "train[:1%]".

    Raises:
        InputError: `datasets` is not installed or cannot load the split, a column is missing, or
            the split is empty.
    """
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise InputError(
            "source: hub needs the package `datasets`: pip install -e '.[data]'."
        ) from error
    label = f"{config.path}, split {split}"
    found: list[list[str]] = [[] for _ in columns]
    try:
        data = load_dataset(
            config.path, config.name, split=split, streaming=config.streaming, **config.options
        )
        for number, record in enumerate(islice(data, config.rows)):
            for column, texts in zip(columns, found, strict=True):
                texts.append(pick(record, column, f"{label}, row {number}"))
    except InputError:
        raise
    except (
        Exception
    ) as error:  # datasets, fsspec, pyarrow and network libraries each have their own
        reason = str(error).strip().split("\n")[0]
        raise InputError(f"{label} cannot be loaded: {reason}") from error
    if not found[0]:
        raise InputError(f"{label} is empty.")
    return Rows.of(found, f"{label}, row", 0)
