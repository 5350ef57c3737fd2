"""Readers of documents for language models: files, Hugging Face datasets and built-in text.

A document is a text that the model reads from beginning to end, such as a file or a paragraph. The
built-in documents are the language reference of Python (`pydoc_data.topics`) and the docstrings of
the standard library, whose source files are parsed but not imported. They depend on the Python
version only.
"""

import ast
import inspect
import logging
import re
import sysconfig
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, compress, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from fourfold.data.loading.array_cache import digest
from fourfold.data.readers.hf_datasets import iterate_hub_split, load_split, loading
from fourfold.data.readers.splits import read_tables, unit_hash
from fourfold.data.readers.text_table import (
    TextTable,
    get_column,
    is_table,
    iterate_table,
    table_source,
)
from fourfold.errors import InputError
from fourfold.text_files import hash_file, iterate_text, resolve

log = logging.getLogger(__name__)
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
Document = tuple[str, Iterable[str]]  # location, and the text in one or several blocks
# Function from a text and a position to begin and end of the next place that divides the text.
Cut = Callable[[str, int], tuple[int, int] | None]
_PIECE_CHARS = 1 << 16
_NON_SPACE = re.compile(r"\S")
_LINE_PART = re.compile(r"[^\n]*\n|[^\n]+")


class Piece(NamedTuple):
    """Part of a document, which can be encoded separately.

    Args:
        text: Text of the part.
        document: Index of the document in its split.
        begins: True for the first piece of a document.
        ends: True for the last piece of a document.
        gap: Text between this piece and the next, which belongs to neither.
    """

    text: str
    document: int
    begins: bool
    ends: bool
    gap: str = ""


@dataclass(frozen=True)
class Documents:
    """Documents of a split, which are read anew by each iteration and never kept in memory.

    An iteration yields the text of each document.

    Args:
        located: Function that yields the location and the text of each document. The blocks of a
            text must be read before the next document.
    """

    located: Callable[[], Iterable[Document]]

    def __iter__(self) -> Iterator[str]:
        return ("".join(blocks) for _, blocks in self.located())

    def location(self, row: int) -> str:
        """Return the location of the document `row`, such as "a.jsonl:7", for error messages."""
        return next(islice(self.located(), row, None))[0]

    def pieces(self, cut: Cut) -> Iterator[Piece]:
        """Divide the documents by `cut` into pieces of over 65,000 characters."""
        for number, (_, blocks) in enumerate(self.located()):
            text, at = "", 0
            begins = True
            for block in blocks:
                if at:
                    text, at = text[at:], 0
                text += block
                while len(text) - at > 2 * _PIECE_CHARS:
                    # White space is divided as in the complete text only if its begin and its end
                    # are known.
                    start = _NON_SPACE.search(text, at + _PIECE_CHARS)
                    found = cut(text, start.end()) if start else None
                    if not found or not _NON_SPACE.search(text, found[1]):
                        break
                    yield Piece(text[at : found[0]], number, begins, False, text[slice(*found)])
                    at, begins = found[1], False
            yield Piece(text[at:], number, begins, True)


def read_documents(options: Any) -> dict[str, Documents]:
    """Return the documents of each split, by name, which are read when they are iterated.

    Args:
        options: `DocumentDataModule`, whose options describe the documents.

    Raises:
        InputError: If `read_tables` raises it. An iteration raises it if files or the dataset
            cannot be read, if a fraction holds out no document or all documents, or if there are
            fewer training documents than `train_rows`.
    """
    splits = read_tables(
        options.source,
        # A single document is divided from its end, and the test split is its last part.
        {name: options.split_sources[name] for name in ("train", "test", "val")},
        lambda: {name: _of_table(table) for name, table in read_python_docs().items()},
        lambda names: Documents(partial(_read_split, options, names)),
        _divide,
        needs_train=False,
    )
    if options.train_rows is not None and "train" in splits:
        splits["train"] = Documents(partial(_sample, splits["train"], options.train_rows))
    return splits


def fingerprint(options: Any, name: str) -> str:
    """Return a hash of the files (their content) or dataset of a split, and of the options."""
    source = options.split_sources[name]
    held_out = name == "train" or isinstance(source, float)
    sources = list(options.split_sources.items()) if held_out else [(name, source)]
    n_rows = options.train_rows if name == "train" else None
    described: list[Any] = [options.column, options.documents, n_rows]
    for split, given in sources:
        if isinstance(given, float):
            described.append((split, given, split == name))
        elif given is not None and (split == "train" or split == name):
            names = [given] if isinstance(given, str) else given
            described.append([_identity(options, x) for x in names])
    return digest(*described)


def _identity(options: Any, name: str) -> tuple[Any, ...]:
    """Return values that change when the content of a file or of a split of the hub does."""
    if options.source == "hub":
        return name, options.hub, getattr(load_split(options.hub, name), "_fingerprint", None)
    return Path(name).suffixes, hash_file(name)


def _read_split(options: Any, names: list[str]) -> Iterator[Document]:
    """Yield the documents with a text, and warn of the number of the others."""
    first, n_rows, n_blank = "", 0, 0
    names = ["+".join(names)] if options.source == "hub" else names
    for location, blocks in chain.from_iterable(_read_one(options, name) for name in names):
        first, n_rows = first or location, n_rows + 1
        if isinstance(blocks, tuple) and not blocks[0].strip():
            n_blank += 1
        else:
            yield location, blocks
    if n_blank == n_rows:
        raise InputError("all rows from here on have an empty text", file=first)
    if n_blank:
        _warn(f"{first}: dropped {n_blank} of {n_rows} rows with an empty text")


def _read_one(options: Any, name: str) -> Iterator[Document]:
    """Yield the documents of a file, or of a split of a Hugging Face dataset."""
    if options.source == "hub":
        for location, texts in iterate_hub_split(options.hub, name, [options.column]):
            yield location, tuple(texts)
    elif name.endswith(".parquet"):
        yield from _read_parquet(name, options.column)
    elif is_table(name):
        for number, texts in iterate_table(name, [options.column]):
            yield f"{table_source(name)}{number}", tuple(texts)
    elif options.documents == "file":
        yield f"{name}, document 1", iterate_text(name)
    else:
        unit = "non-empty line" if options.documents == "line" else "paragraph"
        parts = _divide_text(iterate_text(name), by_line=options.documents == "line")
        for number, found in groupby(parts, itemgetter(0)):
            yield f"{name}, {unit} {number}", (text for _, text in found)


@cache
def _warn(message: str) -> None:
    """Log a warning once, although the documents are read several times."""
    log.warning(message)


def _of_table(table: TextTable) -> Documents:
    texts = table.columns[0]
    return Documents(lambda: ((table.location(i), (text,)) for i, text in enumerate(texts)))


def _read_parquet(name: str, column: str) -> Iterator[Document]:
    """Yield the rows of a Parquet file, with the column `column` (or "record.column")."""
    with loading(name):
        from pyarrow.parquet import ParquetFile

        batches = ParquetFile(resolve(name)).iter_batches(1000, columns=[column])
        records = chain.from_iterable(batch.to_pylist() for batch in batches)
        for number, record in enumerate(records, 1):
            location = f"{name}, row {number}"
            yield location, (get_column(record, column, location),)


def _divide_text(blocks: Iterable[str], *, by_line: bool) -> Iterator[tuple[int, str]]:
    """Divide a text into lines or paragraphs, and yield the number of each and a part of its text.

    Blank lines separate paragraphs. Line ends at the ends of a line or paragraph are left out.
    """
    number, begun = 1, False
    # White space at the beginning of the line, and between the line and the text before it.
    line = before = ""
    in_text, is_first = False, True
    for part in chain.from_iterable(map(_LINE_PART.findall, blocks)):
        line += part
        ends = part.endswith("\n")
        is_blank = not in_text and line.isspace()
        if not is_blank:
            yield number, before + line.removesuffix("\n")
            before, begun = "", True
        # A blank line at the beginning or at the end of the text separates nothing.
        if ends and (by_line or (is_blank and not is_first)):
            number, begun, before = number + begun, False, ""
        elif ends:
            before = line.lstrip("\n") if is_blank else "\n"
        if ends or not is_blank:
            line, in_text = "", not ends
        is_first = is_first and not ends
    if begun and line and not by_line:
        yield number, before + line


def _divide(documents: Documents, fraction: float, name: str) -> tuple[Documents, Documents]:
    """Hold out documents; if there is only one document, hold out the last part of its text.

    A document is held out if a hash of its text, as in `hold_out`, is below `fraction`.
    """

    @cache
    def examine() -> tuple[np.ndarray, int]:
        """Return a bool for each document, True if it is held out, and the length of the first."""
        texts = (blocks for _, blocks in documents.located())
        held_out = np.fromiter((unit_hash(name, text) < fraction for text in texts), bool)
        return held_out, sum(map(len, next(iter(documents.located()))[1]))

    def part(is_held_out: bool) -> Iterable[Document]:
        held_out, length = examine()
        if len(held_out) > 1 and is_held_out in held_out:
            return compress(documents.located(), held_out == is_held_out)
        ((location, blocks), *_) = islice(documents.located(), 1)
        if len(held_out) > 1:
            message = f"{len(held_out)} rows have too few different texts to hold out {fraction:g}"
            raise InputError(f"{message} of them as {name}", file=location)
        border = length - round(length * fraction)
        if not 0 < border < length:
            message = f"the document is too short to hold out {fraction:g} of it as {name}"
            raise InputError(message, file=location)
        span = (border, length) if is_held_out else (0, border)
        return [(location, _characters(blocks, *span))]

    return Documents(partial(part, False)), Documents(partial(part, True))


def _characters(blocks: Iterable[str], begin: int, end: int) -> Iterator[str]:
    """Yield the characters of a text from `begin` to before `end`."""
    for block in blocks:
        yield block[max(0, begin) : max(0, end)]
        begin, end = begin - len(block), end - len(block)


def _sample(documents: Documents, n_rows: int) -> Iterator[Document]:
    """Yield a random sample of the documents, in their order."""
    from fourfold.data.readers.labels import stratified_subset  # few trainings need it

    chosen = np.zeros(sum(1 for _ in documents.located()), bool)
    chosen[stratified_subset(np.zeros(len(chosen)), n_rows, 0)] = True
    return compress(documents.located(), chosen)
