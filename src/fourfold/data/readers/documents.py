"""TextSource: reader of documents for language models; read_python_docs: the built-in text.

A document is a text that the model reads from beginning to end, such as a file or a paragraph. The
built-in text is the language reference of Python (`pydoc_data.topics`) and the docstrings of the
standard library, whose source files are parsed but not imported. The built-in text depends on the
Python version only.
"""

import ast
import inspect
import re
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

from fourfold.core.validation import check_choice, check_range
from fourfold.data.readers.hf_datasets import HubConfig, read_hub_split
from fourfold.data.readers.labels import stratified_subset
from fourfold.data.readers.splits import SplitSource, hold_out, read_tables, unit_hash
from fourfold.data.readers.text_table import TextTable, drop_blank, is_table, read_table
from fourfold.errors import InputError
from fourfold.text_files import read_text
from fourfold.tokenization.tokenizer import split_for_workers

_HOLDOUT_FRACTION = 0.06
_MIN_DOCUMENT_CHARS = 40
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def read_python_docs() -> dict[str, TextTable]:
    """Return the built-in documents, Python's documentation, divided into three splits.

    A hash of a document's name determines its split. Repeated paragraphs are kept once. A
    validation paragraph that shares a line or a sentence with the training split is dropped, and so
    is a test paragraph that shares one with the training or validation split.

    Returns:
        Tables of the splits "train", "val" and "test", whose only column has the documents.
    """
    documents: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    for name, text in (*_read_topics(), *_read_docstrings()):
        documents[_split_of(name)].append(text)
    seen: set[str] = set()
    return {split: _without_leaks(split, texts, seen) for split, texts in documents.items()}


def _split_of(name: str) -> str:
    share = unit_hash(name)
    if share < _HOLDOUT_FRACTION:
        return "test"
    return "val" if share < 2 * _HOLDOUT_FRACTION else "train"


def _read_topics() -> Iterator[tuple[str, str]]:
    from pydoc_data.topics import topics

    for name, text in sorted(topics.items()):
        yield f"topic {name}", inspect.cleandoc(text)


def _read_docstrings() -> Iterator[tuple[str, str]]:
    """Yield a document name and the joined docstrings of each top-level stdlib module."""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):  # distributions put files for other versions there
            continue
        texts = [ast.get_docstring(node) for node in _definitions(tree)]
        yield f"module {path.stem}", "\n\n".join(text for text in texts if text)


def _definitions(node: ast.AST) -> Iterator[_Documented]:
    """Yield the modules, classes and functions at or below a syntax node, in source order."""
    if isinstance(node, _Documented):
        yield node
    for block in ("body", "handlers", "orelse", "finalbody"):
        for child in getattr(node, block, []):
            yield from _definitions(child)


def _lines_and_sentences(paragraph: str) -> set[str]:
    """Return the lines and the sentences of a paragraph, with normalized white space."""
    sentences = re.split(r"(?<=[.!?:;])\s+", paragraph)
    return {" ".join(unit.split()) for unit in (*paragraph.split("\n"), *sentences)} - {""}


def _without_leaks(split: str, documents: list[str], seen: set[str]) -> TextTable:
    """Drop repeated paragraphs, and paragraphs that share a line or sentence with an earlier split.

    Documents of which fewer than 40 characters remain are dropped, too.

    Args:
        split: Name of the split, for the locations in the table.
        documents: Texts of the documents of this split.
        seen: Lines and sentences of the earlier splits. The function changes this set in place: it
            adds the lines and sentences that this split keeps.

    Returns:
        Table with one column, the remaining documents.
    """
    texts = []
    seen_here: set[str] = set()
    seen_paragraphs: set[str] = set()
    for text in documents:
        kept = []
        for paragraph in re.split(r"\n\s*\n", text):
            units = _lines_and_sentences(paragraph)
            normalized = " ".join(paragraph.split())
            if units and normalized not in seen_paragraphs and seen.isdisjoint(units):
                seen_paragraphs.add(normalized)
                seen_here |= units
                kept.append(paragraph.rstrip())
        document = "\n\n".join(kept)
        if len(document) >= _MIN_DOCUMENT_CHARS:
            texts.append(document)
    seen |= seen_here
    return TextTable.from_columns([texts], f"built-in English text, {split}, document ")


DocumentUnit = Literal["file", "line", "paragraph"]


@dataclass(frozen=True)
class TextSource:
    """Source of the documents of a language model.

    Args:
        source: builtin (Python's documentation), files or hub.
        split_sources: Source of each split, with the keys "train", "val" and "test": one or several
            files, the name of a split of the Hugging Face dataset, or None if there is no such
            split; for "val" and "test" also a fraction of the training documents to hold out.
        column: Column with the text in tables (.jsonl, .json, .csv, .tsv) and in a Hugging Face
            dataset, where each row is a document.
        documents: Unit of plain text that is one document: the file, a line, or a paragraph between
            blank lines.
        hub: Hugging Face dataset; required if `source` is hub, otherwise ignored.
        train_rows: Number of training documents to sample; None takes all training documents.
    """

    source: str
    split_sources: dict[str, SplitSource]
    column: str = "text"
    documents: DocumentUnit = "file"
    hub: HubConfig | None = None
    train_rows: int | None = None

    def read(self) -> dict[str, TextTable]:
        """Read the documents of each split, as a table with one column.

        Raises:
            InputError: If `split_sources` names no split, or names a split although `source` is
                builtin; if there are fewer training documents than `train_rows`; or if files or the
                Hugging Face dataset cannot be read.
        """
        # A single document is divided from its end: the test split is the last part of the text.
        sources = {name: self.split_sources[name] for name in ("train", "test", "val")}
        splits = read_tables(
            self.source,
            sources,
            lambda: dict(read_python_docs()),
            lambda names: drop_blank(self._read_split(names)),
            _divide,
            needs_train=False,
        )
        if self.train_rows is not None and "train" in splits:
            one_class = np.zeros(len(splits["train"]), np.int64)
            chosen = stratified_subset(one_class, self.train_rows, 0)
            splits["train"] = splits["train"].select(chosen)
        return splits

    def _read_split(self, names: list[str]) -> TextTable:
        if self.source == "hub":
            return read_hub_split(self.hub, "+".join(names), [self.column])
        return TextTable.concat([self._read_file(name) for name in names])

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


def _divide(table: TextTable, fraction: float, name: str) -> tuple[TextTable, TextTable]:
    """Hold out documents; if there is only one document, hold out the last part of its text.

    Args:
        table: Training documents.
        fraction: Fraction to hold out of the documents, or of the characters of the only document.
        name: Name of the new split.

    Returns:
        Table of the remaining documents, and table of the documents that are held out.

    Raises:
        InputError: If `fraction` does not lie between 0 and 1, or if there is too little text.
    """
    if len(table) > 1:
        return hold_out(table, fraction, name)
    check_range(name, fraction, above=0.0, below=1.0)
    text = table.columns[0][0]
    border = len(text) - round(len(text) * fraction)
    if not 0 < border < len(text):
        message = f"the document is too short to hold out {fraction:g} of it as {name}"
        raise InputError(message, file=table.location(0))
    return replace(table, columns=[[text[:border]]]), replace(table, columns=[[text[border:]]])


def count_bytes_and_words(texts: Sequence[str]) -> tuple[list[int], list[int]]:
    """Count the UTF-8 bytes and the whitespace-separated words of each text.

    Returns:
        Number of bytes of each text, and number of words of each text.
    """
    n_words = [sum(len(chunk.split()) for chunk in split_for_workers(text)) for text in texts]
    return [len(text.encode()) for text in texts], n_words
