"""Sentences with tags from CoNLL columns, CoNLL-U, GermEval, MultiCoNER and JSON lines."""

import json
from pathlib import Path
from typing import Any

import pytest

from fourfold.data.readers.conll import read_tagged_sentences
from fourfold.errors import InputError

TEXT = "EU\tB-ORG\nrejects\tO\nGerman\tB-MISC\ncall\tO\n\t\nPeter\tB-PER\nBlackburn\tI-PER\n\n"


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "x.conll").write_text(TEXT)
    return str(tmp_path / "x.conll")


def test_columns_of_conll_and_json_lines(tmp_path: Path, file: str) -> None:
    first, second = read_tagged_sentences(file, 0, -1)
    assert first.words == ["EU", "rejects", "German", "call"]
    assert second.tags == ["B-PER", "I-PER"]
    assert second.location.endswith("x.conll:6")
    (tmp_path / "y.txt").write_text("-DOCSTART- -X- O O\n\nEU NNP I-NP B-ORG\nrejects VBZ I-VP O\n")
    (only,) = read_tagged_sentences(str(tmp_path / "y.txt"), 0, -1)
    assert only.tags == ["B-ORG", "O"]
    assert read_tagged_sentences(str(tmp_path / "y.txt"), 0, 1)[0].tags == ["NNP", "VBZ"]
    (tmp_path / "z.jsonl").write_text(json.dumps({"tokens": ["a", "b"], "tags": [0, 3]}) + "\n\n")
    assert read_tagged_sentences(str(tmp_path / "z.jsonl"), "tokens", "tags")[0].tags == ["0", "3"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.conll", "a\tO\nb\n", "x.conll:2: the word has no tag: 'b'"),
        ("x.conll", "\n\n", "x.conll: the file is empty"),
        ("x.jsonl", '{"tokens": ["a"], "tags": []}', "x.jsonl:1: there are 1 words, but 0 tags"),
        ("x.jsonl", '{"tokens": "a", "tags": []}', "x.jsonl:1: 'tokens' must be a list"),
        ("x.jsonl", '{"tokens"', "x.jsonl:1: invalid JSON"),
    ],
)
def test_invalid_file_raises(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    columns: tuple[Any, Any] = ("tokens", "tags") if name.endswith("jsonl") else (0, -1)
    with pytest.raises(InputError, match=message):
        read_tagged_sentences(str(tmp_path / name), *columns)


def test_conllu_comments_and_non_word_lines_are_skipped(tmp_path: Path) -> None:
    rest = "\t_" * 4
    lines = ["# text = vámonos al mar", f"1-2\tvámonos\t_\t_{rest}", f"1\tvamos\tir\tVERB{rest}"]
    lines += [f"2\tnos\tnos\tPRON{rest}", f"2.1\tya\tya\tADV{rest}", f"3\t1-2\t1-2\tNUM{rest}"]
    (tmp_path / "x.conllu").write_text("\n".join([*lines, ""]))
    (only,) = read_tagged_sentences(str(tmp_path / "x.conllu"), 1, 3)
    assert only.words == ["vamos", "nos", "1-2"]
    assert only.tags == ["VERB", "PRON", "NUM"]
    assert only.location.endswith(":3")
    (tmp_path / "y.conll").write_text("# O\n2-3 O\n")
    assert read_tagged_sentences(str(tmp_path / "y.conll"), 0, 1)[0].words == ["#", "2-3"]


def test_source_line_of_germeval_is_skipped(tmp_path: Path) -> None:
    lines = ["#\thttp://de.example.org/x\t[2009-10-17]", "1\tAufgrund\tO\tO", "2\tBonns\tB-LOC\tO"]
    (tmp_path / "x.tsv").write_text("\n".join([*lines, ""]))
    (only,) = read_tagged_sentences(str(tmp_path / "x.tsv"), 1, 2)
    assert (only.words, only.tags) == (["Aufgrund", "Bonns"], ["O", "B-LOC"])


def test_a_no_break_space_is_inside_a_word(tmp_path: Path) -> None:
    (tmp_path / "x.conll").write_text("10\u00a0000  O \n New\u00a0York B-LOC\n")
    (only,) = read_tagged_sentences(str(tmp_path / "x.conll"), 0, 1)
    assert (only.words, only.tags) == (["10\u00a0000", "New\u00a0York"], ["O", "B-LOC"])


def test_sizes_of_wnut17(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOURFOLD_DATA", str(data_dir))
    # A line of dev has only a byte-order mark, which is not a word.
    sizes = {"train": (3394, 62730), "dev": (1009, 15733), "test": (1287, 23394)}
    for split, (n, words) in sizes.items():
        sentences = read_tagged_sentences(f"ner/wnut17/{split}.conll.gz", 0, -1)
        assert (len(sentences), sum(len(s.words) for s in sentences)) == (n, words)


def test_multiconer_comments_are_skipped(tmp_path: Path) -> None:
    text = "# id 52\tdomain=en\n\nhis _ _ O\n# _ _ O\nLondon _ _ B-LOC\n"
    (tmp_path / "a.conll").write_text(text)
    (found,) = read_tagged_sentences(str(tmp_path / "a.conll"), 0, -1)
    assert (found.words, found.tags) == (["his", "#", "London"], ["O", "O", "B-LOC"])


def test_json_lines_with_either_suffix(tmp_path: Path) -> None:
    for name in ("a.json", "a.jsonl"):
        (tmp_path / name).write_text('{"tokens": ["London"], "tags": ["B-LOC"]}\n')
        (found,) = read_tagged_sentences(str(tmp_path / name), "tokens", "tags")
        assert (found.words, found.tags) == (["London"], ["B-LOC"])
