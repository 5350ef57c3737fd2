"""Tokenizer: exact decoding, special tokens, corpora in chunks, word starts, JSON."""

import json
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers, processors

import fourfold.tokenization.tokenizer as module
from fourfold.errors import InputError
from fourfold.tokenization.tokenizer import Tokenizer
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


@pytest.mark.parametrize("kind", KINDS)
@given(sentence=st.lists(st.text(LETTERS + "字 \u00a0", max_size=5), max_size=8))
def test_tokens_of_words_are_those_that_the_library_assigns(
    kind: Kind, sentence: list[str]
) -> None:
    tokenizer = trained(kind)
    words = [tokenizer.with_leading_space(word) if i else word for i, word in enumerate(sentence)]
    options = {"is_pretokenized": True, "add_special_tokens": False}
    encoding = tokenizer.backend.encode(words, **options)
    spans = map(encoding.word_to_tokens, range(len(words)))
    expected = [encoding.ids[slice(*span)] if span else [tokenizer.unk_id] for span in spans]
    assert tokenizer.encode_words([sentence]) == [expected]


def seconds(function: Callable[[], object]) -> float:
    """Return the shortest processor time of three calls."""
    times = [time.process_time()]
    for _ in range(3):
        function()
        times.append(time.process_time())
    return float(min(np.diff(times)))


def test_words_are_located_in_linear_time() -> None:
    tokenizer, words = trained("byte_bpe"), ["houses"] * 30_000
    options = {"is_pretokenized": True, "add_special_tokens": False}
    library = seconds(lambda: tokenizer.backend.encode_batch([words], **options))
    assert seconds(lambda: tokenizer.encode_words([words])) < 4 * library


SPACES = " \t\n\u00a0"
PRE_TOKENIZERS = {
    "bytes": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "bytes with prefix": pre_tokenizers.ByteLevel(add_prefix_space=True),
    "words": pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(add_prefix_space=True)]
    ),
    "words without prefix": pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "digits": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel()]
    ),
    "punctuation": pre_tokenizers.Sequence(
        [pre_tokenizers.Punctuation(), pre_tokenizers.ByteLevel(add_prefix_space=True)]
    ),
}
ROBERTA = (("</s>", 2), ("<s>", 1))
POST_PROCESSORS = {
    "none": None,
    "bytes": processors.ByteLevel(trim_offsets=True),
    "bytes without trimming": processors.ByteLevel(trim_offsets=False),
    "RoBERTa": processors.RobertaProcessing(*ROBERTA, trim_offsets=True, add_prefix_space=True),
    "RoBERTa without prefix": processors.RobertaProcessing(
        *ROBERTA, trim_offsets=True, add_prefix_space=False
    ),
    "sequence": processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(
                single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
            ),
        ]
    ),
}


@cache
def combined(pre_tokenizer: str, post_processor: str) -> Tokenizer:
    tokenizer = Tokenizer.from_str(trained("byte_bpe").to_str())
    tokenizer.backend.pre_tokenizer = PRE_TOKENIZERS[pre_tokenizer]
    tokenizer.backend.post_processor = POST_PROCESSORS[post_processor]
    return tokenizer


@pytest.mark.parametrize("post_processor", POST_PROCESSORS)
@pytest.mark.parametrize("pre_tokenizer", PRE_TOKENIZERS)
@given(text=st.text(LETTERS + SPACES + "(A) 字é", max_size=30))
@settings(max_examples=25)
def test_offsets_cover_a_text_whatever_the_tokenizer_trims(
    pre_tokenizer: str, post_processor: str, text: str
) -> None:
    tokenizer = combined(pre_tokenizer, post_processor)
    before = tokenizer.to_str()
    ((ids, offsets),) = tokenizer.encode_with_offsets([text])
    assert ids == tokenizer.encode(text)
    assert tokenizer.to_str() == before
    covered = {i for begin, end in offsets for i in range(begin, end)}
    assert covered >= {i for i, character in enumerate(text) if not character.isspace()}
    for begin, end in offsets:
        assert text[begin:end].isspace() or text[begin:end] == text[begin:end].strip()
    begins = [begin for begin, _ in offsets]
    assert begins == sorted(begins)


def test_invalid_json_is_rejected() -> None:
    with pytest.raises(InputError, match=r"my.json: this is not a tokenizer"):
        Tokenizer.from_str("{}", "my.json")


def test_missing_special_tokens_are_named() -> None:
    description = json.loads(trained("char").to_str())
    description["added_tokens"] = []
    description["model"]["vocab"] = {"a": 0, "<unk>": 1}
    with pytest.raises(InputError, match=r"my.json: .*no pad token: none of <pad>"):
        Tokenizer.from_str(json.dumps(description), "my.json")


def test_panic_of_the_library_becomes_an_input_error() -> None:
    """The library panics if a pattern needs too many steps."""
    backend = train_tokenizer(TokenizerConfig("char"), ["ab"], mask=False).backend
    pattern = tokenizers.Regex(r"(a+)+$")
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Split(pattern, "isolated")
    tokenizer = Tokenizer(backend, "t.json")
    with pytest.raises(InputError, match=r"^t\.json: the tokenizer fails for this text: Onig"):
        tokenizer.encode("a" * 40 + "b")


@pytest.mark.parametrize("nested", [False, True])
def test_a_template_of_undefined_special_tokens_is_refused(nested: bool) -> None:
    """Otherwise, the library panics at the first text, and prints a backtrace."""
    tree = json.loads(trained("bpe").to_str())
    template = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A <eos> $B", special_tokens=[("<bos>", 1), ("<eos>", 2)]
    )
    part = json.loads(template.__getstate__())
    tree["post_processor"] = {"type": "Sequence", "processors": [part]} if nested else part
    assert Tokenizer.from_str(json.dumps(tree)).backend.encode("a").ids[0] == 1
    del part["special_tokens"]["<eos>"]
    with pytest.raises(InputError, match="post-processor must define"):
        Tokenizer.from_str(json.dumps(tree), "x.json")


def test_ids_of_a_vocabulary_with_gaps_are_below_its_size() -> None:
    text = train_tokenizer(TokenizerConfig("char"), ["ab"], mask=False).to_str()
    description = json.loads(text)
    description["model"]["vocab"]["a"] = 99
    tokenizer = Tokenizer.from_str(json.dumps(description))
    assert max(tokenizer.encode("a")) < tokenizer.vocab_size == 100
