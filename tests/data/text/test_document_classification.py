"""Documents as lists of sentences: division, limits, batches of similar sizes, empty documents."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fourfold.data import DocumentData
from fourfold.data.text.packing import encode_documents
from fourfold.errors import InputError
from fourfold.tokenization.training import TokenizerConfig, train_tokenizer

WORDS = TokenizerConfig(kind="word", min_frequency=1, lowercase=True)


def divided(text: str, max_len: int = 50) -> list[str]:
    """Return the sentences of a text."""
    tokenizer = train_tokenizer(WORDS, [text], mask=False)
    found = encode_documents([text], tokenizer, max_len)
    return [tokenizer.decode(found.ids[i].tolist()) for i in range(len(found))]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("good film. bad end! why?", ["good film.", "bad end!", "why?"]),
        ('he said "no." she left.', ['he said " no. "', "she left."]),
        ("no stop here", ["no stop here"]),
        ("one line\nsame sentence\n\nnext", ["one line same sentence", "next"]),
        ("good.<br /><br />bad<BR>end", ["good.", "bad", "end"]),
        ("costs 3.50 today", ["costs 3. 50 today"]),
    ],
)
def test_sentences_end_at_stops_and_breaks(text: str, sentences: list[str]) -> None:
    assert divided(text) == sentences


def test_long_sentences_are_divided() -> None:
    assert divided("one two three four five", max_len=2) == ["one two", "three four", "five"]


def write(path: Path, texts: list[str]) -> str:
    rows = [f"{text}\t{i % 2}" for i, text in enumerate(texts)]
    path.write_text("\n".join(["text\tlabel", *rows, ""]))
    return str(path)


def data(path: Path, texts: list[str], **options: Any) -> DocumentData:
    return DocumentData("files", train=write(path / "t.tsv", texts), tokenizer=WORDS, **options)


def test_batch_lists_the_sentences_of_its_documents(tmp_path: Path) -> None:
    found = data(tmp_path, ["a b. c", "d", "a. b. c d e"])
    batch = found.split("train").batch(np.array([2, 0]), 1, 5)
    assert batch.n_sentences == (3, 2)
    assert batch.n_words == (2, 2, 3, 3, 1)
    assert batch.ids.shape == (5, 3)
    texts = [found.tokenizer.decode(row) for row in batch.ids.tolist()]
    assert texts == ["a.", "b.", "c d e", "a b.", "c"]
    assert batch.labels.tolist() == [0, 0]
    assert (batch.rows.tolist(), batch.epoch, batch.position) == ([2, 0], 1, 5)


def test_documents_with_similar_numbers_of_sentences_share_a_batch(tmp_path: Path) -> None:
    texts = ["word. " * (1 + i % 9) + str(i) for i in range(90)]
    found = data(tmp_path, texts, batch_size=10)
    sizes = [batch.n_sentences for batch in found.train_dataloader()]
    assert all(max(size) - min(size) <= 1 for size in sizes)
    assert sorted(n for size in sizes for n in size) == sorted(2 + i % 9 for i in range(90))


def test_documents_of_too_many_sentences(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    texts = ["a. b. c. d", "a", "b. c"]
    found = data(tmp_path, texts, max_sentences=2)
    assert found.split("train").documents.lengths.tolist() == [2, 1, 2]
    assert "truncated 1 of 3 rows longer than 2 sentences" in caplog.text
    dropped = data(tmp_path, texts, max_sentences=2, too_long="drop").split("train")
    assert dropped.documents.lengths.tolist() == [1, 2]
    assert dropped.labels.tolist() == [1, 0]
    with pytest.raises(InputError, match="has 4 sentences, but max_sentences allows 2"):
        data(tmp_path, texts, max_sentences=2, too_long="error").setup()


@pytest.mark.parametrize("empty", [" ", "<br /> <br />", "\u0000"])
def test_document_without_sentence_is_rejected(empty: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"t\.tsv:3: the document has no sentence$"):
        data(tmp_path, ["a b", empty, "c"]).setup()


def test_invalid_options_are_rejected() -> None:
    with pytest.raises(InputError, match="max_sentences must be at least 1, got 0"):
        DocumentData(max_sentences=0)


def test_builtin_documents_have_one_german_sentence_or_none() -> None:
    splits = DocumentData.builtin()
    assert {name: len(table) for name, table in splits.items()} == {
        "train": 1000,
        "val": 200,
        "test": 200,
    }
    texts = [text for table in splits.values() for text in table.columns[0]]
    assert len(set(texts)) == len(texts)
    sizes = [len(text.split(". ")) for text in texts]
    assert (min(sizes), max(sizes)) == (3, 8)
    labels = splits["train"].columns[1]
    assert labels.count("mixed") == labels.count("english") == 500
