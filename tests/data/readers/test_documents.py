"""Documents of language models in text and tables, hold-out, blank rows, invalid options."""

import json
import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fourfold.data.readers.documents import _without_leaks, read_documents, read_python_docs
from fourfold.data.readers.text_table import TextTable
from fourfold.errors import InputError


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


TEXT = "A first line.\nA second.\n\nAnother paragraph.\n \nA third.\n"
DEFAULTS = {"column": "text", "documents": "file", "hub": None, "train_rows": None}


def source(name: str, split_sources: dict[str, Any], **options: Any) -> SimpleNamespace:
    """Options of a `DocumentDataModule` that describe its documents."""
    return SimpleNamespace(source=name, split_sources=split_sources, **DEFAULTS | options)


def read(
    tmp_path: Path,
    text: str = TEXT,
    name: str = "t.txt",
    *,
    val: float | None = None,
    test: float | None = None,
    **options: Any,
) -> dict[str, list[str]]:
    (tmp_path / name).write_text(text)
    sources = {"train": str(tmp_path / name), "val": val, "test": test}
    splits = read_documents(source("files", sources, **options))
    return {split: list(documents) for split, documents in splits.items()}


@pytest.mark.parametrize(
    ("unit", "documents"),
    [
        ("file", [TEXT]),
        ("line", ["A first line.", "A second.", "Another paragraph.", "A third."]),
        ("paragraph", ["A first line.\nA second.", "Another paragraph.", "A third."]),
    ],
)
def test_documents_are_files_lines_or_paragraphs(
    tmp_path: Path, unit: str, documents: list[str]
) -> None:
    assert read(tmp_path, documents=unit)["train"] == documents


@pytest.mark.parametrize("unit", ["line", "paragraph"])
def test_random_texts_are_divided_as_a_whole(
    tmp_path: Path, unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fourfold.text_files._BLOCK_CHARS", 3)
    rng = random.Random(0)
    for _ in range(300):
        text = "".join(rng.choices(["a", "bc", " ", "\n", "\r", "\n\n", "\u2028"], k=30)) + "x"
        text += "".join(rng.choices(" \n", k=rng.randint(0, 4)))
        (tmp_path / "t.txt").write_text(text, newline="")
        sources = {"train": str(tmp_path / "t.txt"), "val": None, "test": None}
        found = list(read_documents(source("files", sources, documents=unit))["train"])
        parts = re.split(
            r"\n" if unit == "line" else r"\n(?:[^\S\n]*\n)+", text.replace("\r\n", "\n")
        )
        assert found == [part.strip("\n") for part in parts if part.strip()]


@pytest.mark.parametrize("unit", ["file", "line", "paragraph"])
def test_windows_line_endings_change_no_document(tmp_path: Path, unit: str) -> None:
    documents = read(tmp_path, TEXT.replace("\n", "\r\n"), documents=unit)["train"]
    assert documents == read(tmp_path, documents=unit)["train"]


def test_table_rows_are_documents(tmp_path: Path) -> None:
    text = '{"body": "one\\n\\ntwo"}\n{"body": "three"}'
    splits = read(tmp_path, text, "t.jsonl", column="body")
    assert splits["train"] == ["one\n\ntwo", "three"]


def test_end_of_a_single_document_is_held_out(tmp_path: Path) -> None:
    text = "".join(f"{i:03} " for i in range(100))
    splits = read(tmp_path, text, val=0.1, test=0.2)
    texts = [splits[name][0] for name in ("train", "val", "test")]
    assert "".join(texts) == text
    assert [len(text) for text in texts] == [288, 32, 80]


def test_equal_documents_are_held_out_together(tmp_path: Path) -> None:
    text = "\n".join(f"document {i % 50}" for i in range(200))
    splits = read(tmp_path, text, val=0.3, documents="line")
    train, val = (set(splits[name]) for name in ("train", "val"))
    assert not train & val
    assert len(train | val) == 50


def test_train_rows_reduces_the_training_split_only(tmp_path: Path) -> None:
    text = "\n".join(f"document {i}" for i in range(100))
    complete = read(tmp_path, text, val=0.1, documents="line")
    splits = read(tmp_path, text, val=0.1, documents="line", train_rows=20)
    assert splits["val"] == complete["val"]
    assert len(splits["train"]) == 20
    assert set(splits["train"]) < set(complete["train"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"val": 1.5}, "^val must be above 0 and below 1, got 1.5"),
        ({"val": 0.0001}, "too short to hold out 0.0001"),
        ({"train_rows": 2}, "train_rows must be at least 1 and at most 1, got 2"),
    ],
)
def test_invalid_options_are_rejected(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, **options)


@pytest.mark.parametrize(
    ("name", "train", "message"),
    [
        ("files", None, r"data\.train must be given for source: files"),
        ("hub", "train", r"data\.hub must be given"),
        ("builtin", "x", "train must be null for source: builtin, got x"),
    ],
)
def test_invalid_sources_are_rejected(name: str, train: str | None, message: str) -> None:
    options = source(name, {"train": train, "val": None, "test": None})
    with pytest.raises(InputError, match=message):
        list(read_documents(options)["train"])


def test_several_blank_lines_separate_two_paragraphs(tmp_path: Path) -> None:
    text = "\nCHAPTER I\n\n\nIt was so.\n\nAgain.\n \n\n\nCHAPTER II\n\n\nIt was so.\n"
    paragraphs = read(tmp_path, text, documents="paragraph")["train"]
    assert paragraphs == ["CHAPTER I", "It was so.", "Again.", "CHAPTER II", "It was so."]


def test_blank_table_rows_are_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A third of WikiText's rows on the hub are blank."""
    rows = "".join(json.dumps({"text": text}) + "\n" for text in ("a b", "", " \n", "c"))
    assert read(tmp_path, rows, "t.jsonl")["train"] == ["a b", "c"]
    assert "t.jsonl:1: dropped 2 of 4 rows with an empty text" in caplog.text
