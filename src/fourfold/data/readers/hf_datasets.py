"""Reader of text columns of Hugging Face datasets, which `datasets.load_dataset` loads."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from fourfold.data.readers.text_table import TextTable, get_column
from fourfold.errors import InputError


@dataclass(frozen=True)
class HubConfig:
    """Dataset to load with `datasets.load_dataset`, usually from the Hugging Face hub.

    Args:
        path: Name on the hub, a local folder, or a builder such as "json" (with `data_files` in
            `options`).
        name: Configuration of the dataset, such as "de-en" or "wikitext-103-raw-v1"; None selects
            its default configuration.
        rows: Maximum number of rows to read from each split; None reads all rows.
        streaming: Download only the rows that are read, instead of the complete dataset.
        options: Further arguments of `load_dataset`, such as `data_files` or `revision`.
    """

    path: str
    name: str | None = None
    rows: int | None = None
    streaming: bool = False
    options: dict[str, Any] = field(default_factory=dict)


@contextmanager
def loading(origin: str) -> Iterator[None]:
    """Context in which the errors of a library that loads `origin` are converted into InputError.

    The message for a package that is not installed contains the command that installs it.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # datasets, pyarrow, networks and archives raise many types
        reason = " ".join(str(error.__cause__ or error).split()).rstrip(".")
        message = f"the dataset cannot be loaded: {reason}"
        if isinstance(error, ModuleNotFoundError):
            extra = "data" if error.name == "datasets" else "demo"
            message = f"needs the package {error.name}: pip install 'fourfold[{extra}]'"
        raise InputError(message, file=origin) from error


def load_split(config: HubConfig | None, split: str) -> Any:
    """Load a split with `datasets.load_dataset`; the arguments are those of `read_hub_split`."""
    if config is None:
        raise InputError("must be given for source: hub as {path: ...}", option="data.hub")
    with loading(f"{config.path}, split {split}"):
        from datasets import load_dataset

        return load_dataset(
            config.path, config.name, split=split, streaming=config.streaming, **config.options
        )


def iterate_hub_split(
    config: HubConfig | None, split: str, columns: Sequence[str]
) -> Iterator[tuple[str, list[str]]]:
    """Yield the location and the texts of each row, with the arguments of `read_hub_split`."""
    data = load_split(config, split)
    assert config is not None
    label = f"{config.path}, split {split}"
    is_empty = True
    with loading(label):
        for number, record in enumerate(islice(data, config.rows)):
            location = f"{label}, row {number}"
            yield location, [get_column(record, name, location) for name in columns]
            is_empty = False
    if is_empty:
        raise InputError("the split is empty", file=label)


def read_hub_split(config: HubConfig | None, split: str, columns: Sequence[str]) -> TextTable:
    """Read text columns of one split of a Hugging Face dataset.

    Args:
        config: Dataset to load; None raises InputError.
        split: Split in the notation of `load_dataset`, such as "train[:1%]" or "train+test".
        columns: Names of the columns; "translation.de" is the column "de" of a nested record.

    Raises:
        InputError: If `config` is None, if `datasets` is not installed or cannot load the split, if
            a column is missing, or if the split is empty.
    """
    rows = [texts for _, texts in iterate_hub_split(config, split, columns)]
    assert config is not None
    source = f"{config.path}, split {split}, row "
    return TextTable.from_columns([list(c) for c in zip(*rows, strict=True)], source, 0)
