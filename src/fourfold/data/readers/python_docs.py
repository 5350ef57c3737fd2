"""Built-in English text: documentation and docstrings of the installed Python, without a network.

The text is the language reference (`pydoc_data.topics`) and the docstrings of the standard library,
whose source files are parsed but not imported. The text depends on the Python version only.
"""

import ast
import inspect
import re
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from fourfold.data.readers.splits import unit_hash
from fourfold.data.readers.text_table import TextTable

_HOLDOUT_FRACTION = 0.06
_MIN_DOCUMENT_CHARS = 40
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def read_python_docs() -> dict[str, TextTable]:
    """Return the documents in fixed splits that share no line and no sentence.

    The split of a document follows from the name of the document. Repeated paragraphs are kept
    once. Paragraphs of validation and test that share a line or a sentence with an earlier split
    are dropped.
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
    """Yield one document for each top-level module of the standard library."""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):  # distributions put files for other versions there
            continue
        texts = [ast.get_docstring(node) for node in _definitions(tree)]
        yield f"module {path.stem}", "\n\n".join(text for text in texts if text)


def _definitions(node: ast.AST) -> Iterator[_Documented]:
    """Yield the nodes that may have a docstring, in source order."""
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
    """Drop repeated paragraphs, and paragraphs that share a line or sentence with `seen`.

    `seen` holds the lines and sentences of the earlier splits; those of this split are added.
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
