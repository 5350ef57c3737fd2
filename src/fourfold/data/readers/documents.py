"""TextSource: documents for language models from built-in text, files or the Hugging Face hub."""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fourfold.core.validation import check_choice
from fourfold.data.readers.hf_datasets import HubConfig, check_hub_source, read_hub_split
from fourfold.data.readers.labels import stratified_subset
from fourfold.data.readers.python_docs import read_python_docs
from fourfold.data.readers.splits import (
    SplitSource,
    check_holdout_fraction,
    hold_out,
    reject_splits_for_builtin,
)
from fourfold.data.readers.text_table import TextTable, is_table, read_table
from fourfold.errors import InputError
from fourfold.text_files import read_text
from fourfold.tokenization.tokenizer import split_for_workers

log = logging.getLogger(__name__)

DocumentUnit = Literal["file", "line", "paragraph"]


@dataclass(frozen=True)
class TextSource:
    """Source of the documents of a language model.

    Args:
        source: builtin (Python's documentation), files or hub.
        split_sources: For "train", "val" and "test" files or a split of the hub; for "val" and
            "test" also a fraction of training to hold out.
        column: Column of tables (.jsonl, .json, .csv, .tsv) and of the hub; a row is a document.
        documents: Document in plain text: the file, a line, or a paragraph between blank lines.
        hub: Dataset for source hub.
        train_rows: Train on this number of documents only, sampled from all training documents.
    """

    source: str
    split_sources: dict[str, SplitSource]
    column: str = "text"
    documents: DocumentUnit = "file"
    hub: HubConfig | None = None
    train_rows: int | None = None

    def read(self) -> dict[str, TextTable]:
        """Read one column of documents for each split.

        Raises:
            InputError: As the readers of files and of the hub; or if there are no training data or
                fewer than `train_rows`, or if splits of built-in data are named.
        """
        splits = self._read_all()
        if self.train_rows is not None and "train" in splits:
            one_class = np.zeros(len(splits["train"]), np.int64)
            chosen = stratified_subset(one_class, self.train_rows, 0)
            splits["train"] = splits["train"].select(chosen)
        return splits

    def _read_all(self) -> dict[str, TextTable]:
        if self.source == "builtin":
            reject_splits_for_builtin(self.split_sources)
            return dict(read_python_docs())
        if not any(isinstance(source, str | list) for source in self.split_sources.values()):
            raise InputError(f"must be given for source: {self.source}", option="data.train")
        splits: dict[str, TextTable] = {}
        # A single document is divided from its end: the test split is the last part of the text.
        for name in ("train", "test", "val"):
            source = self.split_sources[name]
            if isinstance(source, float):
                if "train" not in splits:
                    message = f"must name files without a training split, got {source:g}"
                    raise InputError(message, option=f"data.{name}")
                divide = _divide_document if len(splits["train"]) == 1 else hold_out
                splits["train"], splits[name] = divide(splits["train"], source, name)
            elif source is not None:
                splits[name] = _drop_blank(self._read_split(source), name)
        return splits

    def _read_split(self, source: str | list[str]) -> TextTable:
        if self.source == "files":
            names = [source] if isinstance(source, str) else source
            return TextTable.concat([self._read_file(name) for name in names])
        return read_hub_split(*check_hub_source(self.source, self.hub, source), [self.column])

    def _read_file(self, name: str) -> TextTable:
        if is_table(name):
            return read_table(name, [self.column])
        text = read_text(name).replace("\r\n", "\n")
        check_choice("data.documents", self.documents, ["file", "line", "paragraph"])
        if self.documents == "file":
            return TextTable.from_columns([[text]], f"{name}, document ")
        if self.documents == "line":
            lines = [line for line in text.split("\n") if line.strip()]
            return TextTable.from_columns([lines], f"{name}, non-empty line ")
        paragraphs = re.split(r"\n(?:[^\S\n]*\n)+", text)
        texts = [paragraph.strip("\n") for paragraph in paragraphs if paragraph.strip()]
        return TextTable.from_columns([texts], f"{name}, paragraph ")


def _drop_blank(table: TextTable, name: str) -> TextTable:
    """Drop blank rows of a table, which would train a model to end a text at once."""
    kept = [row for row, text in enumerate(table.columns[0]) if text.strip()]
    if not kept or len(kept) == len(table):
        return table  # a split without any text raises elsewhere
    n_dropped = len(table) - len(kept)
    log.warning("%s: dropped %d of %d rows without text", name, n_dropped, len(table))
    return table.select(np.array(kept))


def _divide_document(table: TextTable, fraction: float, name: str) -> tuple[TextTable, TextTable]:
    """Divide a single document into its beginning and its end, a fraction of the characters."""
    check_holdout_fraction(name, fraction)
    text = table.columns[0][0]
    border = len(text) - round(len(text) * fraction)
    if not 0 < border < len(text):
        message = f"the document is too short to hold out {fraction:g} of it as {name}"
        raise InputError(message, file=table.location(0))
    begin, end = (
        TextTable([[part]], table.sources, table.source, table.number)
        for part in (text[:border], text[border:])
    )
    return begin, end


def count_bytes_and_words(texts: Sequence[str]) -> tuple[list[int], list[int]]:
    """Return the number of UTF-8 bytes and of white-space separated words of each text."""
    n_words = [sum(len(chunk.split()) for chunk in split_for_workers(text)) for text in texts]
    return [len(text.encode()) for text in texts], n_words
