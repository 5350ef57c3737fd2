"""English prose without a network: what Python says about itself.

The language reference (`pydoc_data.topics`) and the docstrings of the standard library, read from
its source files without importing them. The text depends on the Python version, not on the machine.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from fourfold.data.sources import Rows

_HELD_OUT = 0.06
_SHORTEST = 40
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def embedded_text() -> dict[str, Rows]:
    """Documents in fixed splits; no line and no sentence of one split occurs in another.

    A document's split follows from its name. Paragraphs come once, wherever they were repeated, and
    those of validation and test that share a line or a sentence with an earlier split are left out.
    """
    documents: dict[str, list[tuple[str, str]]] = {"train": [], "val": [], "test": []}
    for name, text in (*_topics(), *_docstrings()):
        documents[_split_of(name)].append((name, text))
    seen: set[str] = set()
    return {split: _without_leaks(split, found, seen) for split, found in documents.items()}


def _split_of(name: str) -> str:
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    share = int.from_bytes(digest, "big") / 2**64
    return "test" if share < _HELD_OUT else "val" if share < 2 * _HELD_OUT else "train"


def _topics() -> Iterator[tuple[str, str]]:
    import pydoc_data.topics

    for name, text in sorted(pydoc_data.topics.topics.items()):
        yield f"topic {name}", inspect.cleandoc(text)


def _docstrings() -> Iterator[tuple[str, str]]:
    """The docstrings of the modules at the top of the standard library, a document a module."""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):  # distributions put odd files there
            continue
        texts = [ast.get_docstring(node) for node in _definitions(tree)]
        yield f"module {path.stem}", "\n\n".join(text for text in texts if text)


def _definitions(node: ast.AST) -> Iterator[_Documented]:
    """What may have a docstring, in the order of the source; expressions are not entered."""
    if isinstance(node, _Documented):
        yield node
    for block in ("body", "handlers", "orelse", "finalbody"):
        for child in getattr(node, block, []):
            yield from _definitions(child)


def units(paragraph: str) -> set[str]:
    """The lines and the sentences of a paragraph, without differences in white space."""
    sentences = re.split(r"(?<=[.!?:;])\s+", paragraph)
    return {" ".join(unit.split()) for unit in (*paragraph.split("\n"), *sentences)} - {""}


def _without_leaks(split: str, documents: list[tuple[str, str]], seen: set[str]) -> Rows:
    """The documents without paragraphs that repeat themselves or, in part, an earlier split."""
    texts, mine = [], set()
    paragraphs_seen: set[str] = set()
    for _, text in documents:
        kept = []
        for paragraph in re.split(r"\n\s*\n", text):
            found = units(paragraph)
            whole = " ".join(paragraph.split())
            if found and whole not in paragraphs_seen and seen.isdisjoint(found):
                paragraphs_seen.add(whole)
                mine |= found
                kept.append(paragraph.rstrip())
        if len(text := "\n\n".join(kept)) >= _SHORTEST:
            texts.append(text)
    seen |= mine
    return Rows.of([texts], f"embedded English {split}, document")
