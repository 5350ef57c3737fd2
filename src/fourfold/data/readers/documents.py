"""Readers of documents for language models: files, Hugging Face datasets and built-in text.

A document is a text that the model reads from beginning to end, such as a file or a paragraph. The
built-in documents are the language reference of Python (`pydoc_data.topics`) and the docstrings of
the standard library, whose source files are parsed but not imported. They depend on the Python
version only.
"""

import ast
import inspect
import re
import sysconfig
from bisect import bisect
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from fourfold.core.validation import check_choice
from fourfold.data.readers.hf_datasets import HubConfig, read_hub_split
from fourfold.data.readers.labels import stratified_subset
from fourfold.data.readers.splits import SplitSource, hold_out, read_tables, unit_hash
from fourfold.data.readers.text_table import TextTable, drop_blank, is_table, read_table
from fourfold.errors import InputError
from fourfold.text_files import read_text
from fourfold.tokenization.tokenizer import split_for_workers

# A document whose name has a hash below 0.06 is in "test", from 0.06 to 0.12 in "val".
_HOLDOUT_BORDERS = (0.06, 0.12)
_MIN_DOCUMENT_CHARS = 40  # shorter built-in documents are dropped
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def read_python_docs() -> dict[str, TextTable]:
    """Return the built-in documents, Python's documentation, as a table for each split.

    A hash of a document's name determines its split. Repeated paragraphs of a split are kept once.
    The order of the splits is train, val, test. A paragraph is removed if one of its lines or
    sentences also occurs in an earlier split.
    """
    documents: dict[str, list[str]] = {"train": [], "val": [], "test": []}
    for name, text in _named_documents():
        split = ("test", "val", "train")[bisect(_HOLDOUT_BORDERS, unit_hash(name))]
        documents[split].append(text)
    seen: set[str] = set()
    return {split: _without_leaks(split, texts, seen) for split, texts in documents.items()}


def _named_documents() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each built-in document."""
    from pydoc_data.topics import topics

    for name, text in sorted(topics.items()):
        yield f"topic {name}", inspect.cleandoc(text)
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        with suppress(SyntaxError, ValueError):  # distributions put files for other versions there
            tree = ast.parse(path.read_bytes())
            yield f"module {path.stem}", "\n\n".join(_docstrings(tree))


def _docstrings(node: ast.AST) -> Iterator[str]:
    """Yield the docstrings of the modules, classes and functions at or below a syntax node."""
    if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)):
        yield text
    for block in ("body", "handlers", "orelse", "finalbody"):
        for child in getattr(node, block, []):
            yield from _docstrings(child)


def _without_leaks(split: str, documents: list[str], seen: set[str]) -> TextTable:
    """Return the documents of a split without repeated paragraphs and without text that was seen.

    The lines and sentences that remain are added to `seen`, those of the earlier splits.
    """
    texts = []
    seen_here: set[str] = set()
    seen_paragraphs: set[str] = set()
    for text in documents:
        kept = []
        for paragraph in re.split(r"\n\s*\n", text):
            sentences = re.split(r"(?<=[.!?:;])\s+", paragraph)
            units = {" ".join(unit.split()) for unit in (*paragraph.split("\n"), *sentences)} - {""}
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
        source: "builtin" (Python's documentation), "files" or "hub" (a Hugging Face dataset).
        split_sources: Source of each split ("train", "val" and "test"), as in `read_tables`.
        column: Name of the column that contains the text, in tables (.jsonl, .json, .csv, .tsv) and
            in a Hugging Face dataset. Each row is a document.
        documents: Part of a plain text file that is one document: "file" (the whole file), "line",
            or "paragraph" (text between blank lines).
        hub: Hugging Face dataset; required if `source` is "hub", otherwise ignored.
        train_rows: Number of training documents to sample; None takes all training documents.
    """

    source: str
    split_sources: dict[str, SplitSource]
    column: str = "text"
    documents: DocumentUnit = "file"
    hub: HubConfig | None = None
    train_rows: int | None = None

    def read(self) -> dict[str, TextTable]:
        """Return a table of each split, by name, with one column and a document in each row.

        Raises:
            InputError: If `read_tables` raises it, if there are fewer training documents than
                `train_rows`, or if files or the dataset cannot be read.
        """
        splits = read_tables(
            self.source,
            # A single document is divided from its end, and the test split is its last part.
            {name: self.split_sources[name] for name in ("train", "test", "val")},
            lambda: dict(read_python_docs()),
            lambda names: drop_blank(self._read_split(names)),
            _divide,
            needs_train=False,
        )
        if self.train_rows is not None and "train" in splits:
            chosen = stratified_subset(np.zeros(len(splits["train"])), self.train_rows, 0)
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
        check_choice("data.documents", self.documents, get_args(DocumentUnit))
        if self.documents == "file":
            return TextTable.from_columns([[text]], f"{name}, document ")
        is_line = self.documents == "line"
        parts = text.split("\n") if is_line else re.split(r"\n(?:[^\S\n]*\n)+", text)
        texts = [part.strip("\n") for part in parts if part.strip()]
        unit = "non-empty line" if is_line else "paragraph"
        return TextTable.from_columns([texts], f"{name}, {unit} ")


def _divide(table: TextTable, fraction: float, name: str) -> tuple[TextTable, TextTable]:
    """Hold out documents; if there is only one document, hold out the last part of its text."""
    if len(table) > 1:
        return hold_out(table, fraction, name)
    text = table.columns[0][0]
    border = len(text) - round(len(text) * fraction)
    if not 0 < border < len(text):
        message = f"the document is too short to hold out {fraction:g} of it as {name}"
        raise InputError(message, file=table.location(0))
    return replace(table, columns=[[text[:border]]]), replace(table, columns=[[text[border:]]])


def count_bytes_and_words(texts: Sequence[str]) -> tuple[list[int], list[int]]:
    """Return the numbers of UTF-8 bytes and of whitespace-separated words of each text."""
    n_words = [sum(len(chunk.split()) for chunk in split_for_workers(text)) for text in texts]
    return [len(text.encode()) for text in texts], n_words
