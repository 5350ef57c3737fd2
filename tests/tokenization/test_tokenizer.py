"""Tokenizer: exact decoding, special tokens, corpora in chunks, word starts, JSON."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fourfold.tokenization.tokenizer as module
from fourfold.errors import InputError
from fourfold.tokenization.tokenizer import Tokenizer, split_for_workers
from fourfold.tokenization.training import Kind, TokenizerConfig, train_tokenizer

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "Fünf große Äpfel kosten 3,50 €.",
    "a\tb\nc  d",
    "unhappy unhappily happily happy happiness",
] * 3
KINDS: list[Kind] = ["bpe", "byte_bpe", "wordpiece", "unigram", "word", "char"]
EXACT_KINDS = ["bpe", "byte_bpe", "unigram", "char"]
LETTERS = "".join(sorted(set("".join(TEXTS))))


@cache
def trained(kind: Kind, mask: bool = False) -> Tokenizer:
    return train_tokenizer(TokenizerConfig(kind=kind, vocab_size=400), TEXTS, mask=mask)


def encode_corpus(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    ids, lengths = tokenizer.encode_corpus(texts)
    return [row.tolist() for row in np.split(ids, np.cumsum(lengths)[:-1])]


@pytest.mark.parametrize("kind", EXACT_KINDS)
@given(st.text(LETTERS, max_size=40))
@settings(max_examples=80, deadline=None)
def test_decoding_restores_text_of_known_characters(kind: Kind, text: str) -> None:
    tokenizer = trained(kind)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.text(max_size=40))
@settings(max_examples=120, deadline=None)
def test_byte_bpe_restores_any_text(text: str) -> None:
    tokenizer = trained("byte_bpe")
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_wordpiece_restores_plain_words() -> None:
    tokenizer = trained("wordpiece")
    assert tokenizer.decode(tokenizer.encode("the happy fox")) == "the happy fox"


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_have_the_first_ids(kind: Kind) -> None:
    tokenizer = trained(kind, mask=True)
    roles = (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id)
    assert (*roles, tokenizer.mask_id) == (0, 1, 2, 3, 4)
    assert tokenizer.special_ids == [0, 1, 2, 3, 4]
    assert trained(kind).mask_id is None
    assert tokenizer.vocab_size <= 400


@pytest.mark.parametrize("kind", KINDS)
def test_text_like_special_tokens_is_encoded_as_text(kind: Kind) -> None:
    tokenizer = trained(kind, mask=True)
    for each in (tokenizer, Tokenizer.from_str(tokenizer.to_str())):
        ids = each.encode("a </s> <mask> <pad> b")
        assert not {0, 1, 2, 4} & set(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_json_round_trip(kind: Kind, tmp_path: Path) -> None:
    tokenizer = trained(kind, mask=True)
    tokenizer.save(tmp_path / "sub" / "tokenizer.json")
    assert [p.name for p in (tmp_path / "sub").iterdir()] == ["tokenizer.json"]
    loaded = Tokenizer.from_str((tmp_path / "sub" / "tokenizer.json").read_text("utf-8"))
    assert loaded.encode_batch(TEXTS) == tokenizer.encode_batch(TEXTS)
    assert loaded.special_ids == tokenizer.special_ids
    assert loaded.to_str() == tokenizer.to_str()


@pytest.mark.parametrize("kind", KINDS)
def test_corpus_is_encoded_like_a_batch(kind: Kind) -> None:
    tokenizer = trained(kind)
    texts = ["", *TEXTS, ""]
    assert encode_corpus(tokenizer, texts) == tokenizer.encode_batch(texts)


@pytest.mark.parametrize("kind", KINDS)
@given(st.text(LETTERS + "\n ", max_size=300))
@settings(max_examples=30, deadline=None)
def test_splitting_long_texts_does_not_change_their_ids(kind: Kind, text: str) -> None:
    tokenizer = trained(kind)
    expected = tokenizer.encode(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHUNK_CHARS", 5)
        assert encode_corpus(tokenizer, [text, text]) == [expected, expected]


def test_batches_of_a_corpus_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BATCH_CHARS", 30)
    tokenizer = trained("bpe")
    texts = [*TEXTS, "", "x" * 99]
    batch_chars = []
    encode_batch = Tokenizer.encode_batch

    def record(self: Tokenizer, batch: Sequence[str]) -> list[list[int]]:
        batch_chars.append(sum(map(len, batch)))
        return encode_batch(self, batch)

    monkeypatch.setattr(Tokenizer, "encode_batch", record)
    assert encode_corpus(tokenizer, texts) == [tokenizer.encode(text) for text in texts]
    assert len(batch_chars) > 5
    assert all(n <= 30 or n in map(len, texts) for n in batch_chars)


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe", "wordpiece", "word"])
def test_training_on_a_split_text_gives_the_same_tokenizer(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "\n".join(" ".join(TEXTS) for _ in range(3))
    expected = train_tokenizer(TokenizerConfig(kind, 300), [text], mask=False).to_str()
    monkeypatch.setattr(module, "_CHUNK_CHARS", 20)
    assert train_tokenizer(TokenizerConfig(kind, 300), [text], mask=False).to_str() == expected


@pytest.mark.parametrize("metaspace", [True, False])
def test_long_texts_are_split(monkeypatch: pytest.MonkeyPatch, metaspace: bool) -> None:
    monkeypatch.setattr(module, "_CHUNK_CHARS", 5)
    text = "one two\nthree four\nfive six\nseven"
    chunks = list(split_for_workers(text, metaspace=metaspace))
    assert len(chunks) > 1
    assert (" " if metaspace else "").join(chunks) == text


def test_special_tokens_are_omitted_from_decoded_text() -> None:
    tokenizer = trained("bpe")
    ids = tokenizer.encode("the fox")
    assert tokenizer.decode_batch([[1, *ids, 2, 0, 0]]) == ["the fox"]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("bpe", ["unhappily", " dog", " over"]),
        ("unigram", ["unhappily", " dog", " over"]),
        ("byte_bpe", ["unhappily", " dog", " over"]),
        ("wordpiece", ["unhappily", "dog", ".", "over"]),
        ("word", ["unhappily", "dog", ".", "over"]),
        ("char", ["unhappily", " dog", " over"]),
    ],
)
def test_word_starts_divide_ids_into_words(kind: Kind, words: list[str]) -> None:
    tokenizer = trained(kind, mask=True)
    text = "unhappily dog.over" if kind in ("wordpiece", "word") else "".join(words)
    ids = np.array([1, *tokenizer.encode(text), 2, 0])
    starts = tokenizer.word_starts(ids[None])[0]
    assert starts[[0, -2, -1]].all()
    ids_of_words = np.split(ids[1:-2], np.flatnonzero(starts[2:-2]) + 1)
    decoded = [tokenizer.decode(of_word).strip(" ") for of_word in ids_of_words]
    assert decoded == [word.strip(" ") for word in words]


def test_invalid_json_is_rejected() -> None:
    with pytest.raises(InputError, match=r"my.json: this is not a tokenizer"):
        Tokenizer.from_str("{}", "my.json")


def test_missing_special_tokens_are_named() -> None:
    description = json.loads(trained("char").to_str())
    description["added_tokens"] = []
    description["model"]["vocab"] = {"a": 0, "<unk>": 1}
    with pytest.raises(InputError, match=r"my.json: .*no pad token: none of <pad>"):
        Tokenizer.from_str(json.dumps(description), "my.json")
