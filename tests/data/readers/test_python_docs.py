"""Built-in English text: size, content, and splits without leaks."""

import re

from fourfold.data.readers.python_docs import _without_leaks, read_python_docs
from fourfold.data.readers.text_table import TextTable


def lines(table: TextTable) -> set[str]:
    texts = table.columns[0]
    return {" ".join(line.split()) for text in texts for line in text.split("\n")} - {""}


def sentences(table: TextTable) -> set[str]:
    text = "\n\n".join(table.columns[0])
    return {" ".join(s.split()) for s in re.split(r"\n\n|(?<=[.!?])\s+", text)} - {""}


def test_splits_share_no_line_and_no_sentence() -> None:
    splits = read_python_docs()
    for left, right in (("train", "val"), ("train", "test"), ("val", "test")):
        for units in (lines, sentences):
            assert not units(splits[left]) & units(splits[right])


def test_splits_hold_enough_english_text() -> None:
    splits = read_python_docs()
    assert sum(len(text) for text in splits["train"].columns[0]) > 500_000
    for name in ("val", "test"):
        assert sum(len(text) for text in splits[name].columns[0]) > 20_000
        assert len(splits[name]) > 5
    text = "\n".join(text for table in splits.values() for text in table.columns[0])
    assert "Recursively copy a directory tree" in text  # shutil.copytree
    assert text.split().count("the") > 3000


def test_leaking_and_repeated_paragraphs_are_dropped() -> None:
    seen: set[str] = set()
    long = "A paragraph that is long enough to make a document."
    train = _without_leaks("train", [f"{long}\n\nShared line.\nMore.", long], seen)
    assert train.columns == [[f"{long}\n\nShared line.\nMore."]]
    text = "Other words, many of them, so that they are kept.\n\nBefore. Shared   line."
    val = _without_leaks("val", [text], seen)
    assert val.columns == [["Other words, many of them, so that they are kept."]]
