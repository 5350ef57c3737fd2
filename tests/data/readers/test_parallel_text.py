"""Sentence pairs from aligned files, name templates and tables."""

from pathlib import Path

import pytest

from fourfold.data.readers.parallel_text import read_pairs
from fourfold.errors import InputError

LANGS = ("en", "de")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {
        "a.en": "one\ntwo\n",
        "a.de": "eins\nzwei\n",
        "b.en": "three\n",
        "b.de": "drei\n",
        "c.tsv": "de\ten\nvier\tfour\n",
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_pairs_come_from_two_files_a_template_or_a_table(folder: Path) -> None:
    both = read_pairs([f"{folder}/a.en", f"{folder}/a.de"], LANGS, None)
    assert both.columns == [["one", "two"], ["eins", "zwei"]]
    assert read_pairs([f"{folder}/a.{{lang}}"], LANGS, None).columns == both.columns
    table = read_pairs([f"{folder}/c.tsv"], LANGS, ["en", "de"])
    assert table.columns == [["four"], ["vier"]]


def test_several_templates_are_concatenated(folder: Path) -> None:
    table = read_pairs([f"{folder}/a.{{lang}}", f"{folder}/b.{{lang}}"], ("de", "en"), None)
    assert table.columns == [["eins", "zwei", "drei"], ["one", "two", "three"]]
    assert table.location(2) == f"{folder}/b.de + {folder}/b.en:1"


@pytest.mark.parametrize("sources", [["a.en"], ["a.en", "a.de", "b.en"], []])
def test_sources_without_two_languages_are_rejected(sources: list[str]) -> None:
    with pytest.raises(InputError, match=r"must be \[source file, target file\]"):
        read_pairs(sources, LANGS, None)
