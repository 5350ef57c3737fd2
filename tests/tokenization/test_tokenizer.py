import json
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fourfold.data.tokenizer as module
from fourfold.core.errors import InputError
from fourfold.data.tokenizer import Tokenizer, cut
from fourfold.data.tokenizer_training import TokenizerConfig, train_tokenizer

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "Fünf große Äpfel kosten 3,50 €.",
    "a\tb\nc  d",
    "unhappy unhappily happily happy happiness",
] * 3
KINDS = ["bpe", "byte_bpe", "wordpiece", "unigram", "char"]
EXACT = ["bpe", "byte_bpe", "unigram", "char"]
LETTERS = "".join(sorted(set("".join(TEXTS))))


@cache
def trained(kind, mask=False, **options):
    config = TokenizerConfig(kind=kind, vocab_size=400, **options)
    return train_tokenizer(config, TEXTS, mask=mask)


@pytest.mark.parametrize("kind", EXACT)
@given(st.text(LETTERS, max_size=40))
@settings(max_examples=80, deadline=None)
def test_text_of_known_characters_comes_back(kind, text):
    tokenizer = trained(kind)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.text(max_size=40))
@settings(max_examples=120, deadline=None)
def test_bytes_give_back_any_text(text):
    tokenizer = trained("byte_bpe")
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_wordpiece_gives_back_plain_words():
    tokenizer = trained("wordpiece")
    assert tokenizer.decode(tokenizer.encode("the happy fox")) == "the happy fox"


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_stand_first_in_the_agreed_order(kind):
    tokenizer = trained(kind, mask=True)
    places = (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id)
    assert (*places, tokenizer.mask_id) == (0, 1, 2, 3, 4)
    assert tokenizer.special_ids == [0, 1, 2, 3, 4]
    assert trained(kind).mask_id is None
    assert tokenizer.vocab_size <= 400


@pytest.mark.parametrize("kind", KINDS)
def test_text_that_looks_like_a_special_token_is_text(kind):
    tokenizer = trained(kind, mask=True)
    again = Tokenizer.from_str(tokenizer.to_str())
    for each in (tokenizer, again):
        ids = each.encode("a </s> <mask> <pad> b")
        assert not {0, 1, 2, 4} & set(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_json_keeps_everything(kind, tmp_path):
    tokenizer = trained(kind, mask=True)
    tokenizer.save(tmp_path / "sub" / "tokenizer.json")
    assert [p.name for p in (tmp_path / "sub").iterdir()] == ["tokenizer.json"]
    again = Tokenizer.from_str((tmp_path / "sub" / "tokenizer.json").read_text("utf-8"))
    assert again.encode_batch(TEXTS) == tokenizer.encode_batch(TEXTS)
    assert again.special_ids == tokenizer.special_ids
    assert again.to_str() == tokenizer.to_str()


@pytest.mark.parametrize("kind", KINDS)
def test_corpus_is_the_batch_in_flat_arrays(kind):
    tokenizer = trained(kind)
    corpus = tokenizer.encode_corpus(["", *TEXTS, ""])
    rows = [corpus[i].tolist() for i in range(len(corpus))]
    assert rows == tokenizer.encode_batch(["", *TEXTS, ""])


@pytest.mark.parametrize("kind", KINDS)
@given(st.text(LETTERS + "\n ", max_size=300))
@settings(max_examples=30, deadline=None)
def test_long_texts_are_cut_without_a_trace(kind, text):
    tokenizer = trained(kind)
    whole = tokenizer.encode(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHUNK", 5)
        assert tokenizer.encode_corpus([text, text])[1].tolist() == whole


def test_what_is_encoded_at_once_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "_MOST", 30)
    tokenizer, texts = trained("bpe"), [*TEXTS, "", "x" * 99]
    asked, encode = [], Tokenizer.encode_batch

    def noted(self, rows):
        asked.append(sum(map(len, rows)))
        return encode(self, rows)

    monkeypatch.setattr(Tokenizer, "encode_batch", noted)
    corpus = tokenizer.encode_corpus(texts)
    assert [row.tolist() for row in map(corpus.__getitem__, range(len(corpus)))] == [
        tokenizer.encode(text) for text in texts
    ]
    assert len(asked) > 5
    assert all(n <= 30 or n in map(len, texts) for n in asked)


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe", "wordpiece"])
def test_a_long_text_trains_as_a_whole(kind, monkeypatch):
    text = "\n".join(" ".join(TEXTS) for _ in range(3))
    whole = train_tokenizer(TokenizerConfig(kind, 300), [text], mask=False).to_str()
    monkeypatch.setattr(module, "_CHUNK", 20)
    pieces = train_tokenizer(TokenizerConfig(kind, 300), [text], mask=False).to_str()
    assert pieces == whole


def test_long_texts_are_really_cut(monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", 5)
    for kind in ("bpe", "byte_bpe"):
        assert len(list(cut("one two\nthree four\nfive six\nseven", metaspace=kind == "bpe"))) > 1


def test_special_tokens_are_left_out_of_decoded_text():
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
        ("char", ["unhappily", " dog", " over"]),
    ],
)
def test_word_starts(kind, words):
    tokenizer = trained(kind, mask=True)
    text = "".join(words) if kind != "wordpiece" else "unhappily dog.over"
    ids = np.array([1, *tokenizer.encode(text), 2, 0])
    starts = tokenizer.word_starts(ids[None])[0]
    assert starts[[0, -2, -1]].all()
    pieces = np.split(ids[1:-2], np.flatnonzero(starts[2:-2]) + 1)
    assert [tokenizer.decode(piece).strip(" ") for piece in pieces] == [w.strip(" ") for w in words]


def test_broken_json():
    with pytest.raises(InputError, match=r"my.json is not a tokenizer"):
        Tokenizer.from_str("{}", "my.json")


def test_missing_roles_are_named():
    described = json.loads(trained("char").to_str())
    described["added_tokens"] = []
    described["model"]["vocab"] = {"a": 0, "<unk>": 1}
    with pytest.raises(InputError, match=r"my.json has no pad token: none of <pad>"):
        Tokenizer.from_str(json.dumps(described), "my.json")
