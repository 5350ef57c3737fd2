import json

import pytest

from fourfold.core.errors import InputError
from fourfold.data.documents import TextSource, sizes

TEXT = "A first line.\nA second.\n\nAnother paragraph.\n \nA third.\n"


def read(tmp_path, text=TEXT, name="t.txt", *, val=None, test=None, **options):
    (tmp_path / name).write_text(text)
    parts = {"train": str(tmp_path / name), "val": val, "test": test}
    return TextSource("files", parts, **options).read()


@pytest.mark.parametrize(
    ("unit", "documents"),
    [
        ("file", [TEXT]),
        ("line", ["A first line.", "A second.", "Another paragraph.", "A third."]),
        ("paragraph", ["A first line.\nA second.", "Another paragraph.", "A third."]),
    ],
)
def test_what_a_document_is(tmp_path, unit, documents):
    assert read(tmp_path, documents=unit)["train"].columns == [documents]


@pytest.mark.parametrize("unit", ["file", "line", "paragraph"])
def test_lines_may_end_as_on_windows(tmp_path, unit):
    text = TEXT.replace("\n", "\r\n")
    assert read(tmp_path, text, documents=unit)["train"].columns == (
        read(tmp_path, documents=unit)["train"].columns
    )


def test_rows_of_a_table_are_documents(tmp_path):
    rows = read(tmp_path, '{"body": "one\\n\\ntwo"}\n{"body": "three"}', "t.jsonl", column="body")
    assert rows["train"].columns == [["one\n\ntwo", "three"]]


def test_the_end_of_a_single_document_is_held_out(tmp_path):
    text = "".join(f"{i:03} " for i in range(100))
    parts = read(tmp_path, text, val=0.1, test=0.2)
    pieces = [parts[name].columns[0][0] for name in ("train", "val", "test")]
    assert "".join(pieces) == text
    assert [len(piece) for piece in pieces] == [288, 32, 80]


def test_whole_documents_are_held_out_and_repeated_ones_stay_together(tmp_path):
    text = "\n".join(f"document {i % 50}" for i in range(200))
    parts = read(tmp_path, text, val=0.3, documents="line")
    train, val = (set(parts[name].columns[0]) for name in ("train", "val"))
    assert not train & val
    assert len(train | val) == 50


def test_some_documents_of_training_alone(tmp_path):
    text = "\n".join(f"document {i}" for i in range(100))
    whole = read(tmp_path, text, val=0.1, documents="line")
    parts = read(tmp_path, text, val=0.1, documents="line", train_rows=20)
    assert parts["val"].columns == whole["val"].columns
    assert len(parts["train"]) == 20
    assert set(parts["train"].columns[0]) < set(whole["train"].columns[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"val": 1.5}, "val is 1.5, but a part to hold out must lie between 0 and 1"),
        ({"val": 0.0001}, "too short to hold out"),
        ({"train_rows": 2}, "train_rows is 2, but there are 1 training rows"),
        ({"documents": "word"}, "not 'word'"),
    ],
)
def test_bad_options(tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path, **options)


@pytest.mark.parametrize(
    ("kind", "train", "message"),
    [
        ("files", None, "source: files needs `train`"),
        ("web", "x", "not 'web'"),
        ("hub", "train", "needs `hub:"),
        ("embedded", "x", "train is x, but source is embedded, which has its own splits"),
    ],
)
def test_bad_sources(kind, train, message):
    with pytest.raises(InputError, match=message):
        TextSource(kind, {"train": train, "val": None, "test": None}).read()


def test_sizes():
    assert sizes(["für dich", ""]) == ([9, 0], [2, 0])


def test_any_number_of_blank_lines_is_between_two_paragraphs(tmp_path):
    text = "\nCHAPTER I\n\n\nIt was so.\n\nAgain.\n \n\n\nCHAPTER II\n\n\nIt was so.\n"
    (found,) = read(tmp_path, text, documents="paragraph")["train"].columns
    assert found == ["CHAPTER I", "It was so.", "Again.", "CHAPTER II", "It was so."]


def test_rows_without_text_are_no_documents(tmp_path, caplog):
    """A third of WikiText's rows on the hub."""
    rows = "".join(json.dumps({"text": text}) + "\n" for text in ("a b", "", " \n", "c"))
    assert read(tmp_path, rows, "t.jsonl")["train"].columns == [["a b", "c"]]
    assert "train: 2 of 4 rows hold no text: dropped." in caplog.text


def test_words_and_bytes_of_a_long_text(monkeypatch):
    text = "one two\nthree\x1cfour  \n fünf\tsix\n" * 9
    whole = sizes([text, ""])
    monkeypatch.setattr("fourfold.data.tokenizer._CHUNK", 7)
    assert sizes([text, ""]) == whole == ([len(text.encode()), 0], [len(text.split()), 0])
