"""Tokenizer training: determinism, vocabulary size, lower case, memory, invalid options."""

import tracemalloc

import pytest

from fourfold.errors import InputError
from fourfold.tokenization.training import Kind, TokenizerConfig, train_tokenizer

TEXTS = ["low lower lowest", "new newer newest wide wider widest", "Größe Nähe nah näher"] * 2


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe", "wordpiece", "word", "char"])
def test_training_is_deterministic(kind: Kind) -> None:
    # The library seeds its hash maps anew each time, so repetition shows any dependence on them.
    texts = [f"{a}{b}{c}" for a in "abcde" for b in "fghij" for c in "klmno"]
    config = TokenizerConfig(kind, 400, min_frequency=1)
    first, *others = (train_tokenizer(config, texts, mask=True).to_str() for _ in range(6))
    assert others == [first] * 5


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe", "wordpiece", "unigram", "word", "char"])
def test_lowercase_encodes_both_cases_equally(kind: Kind) -> None:
    tokenizer = train_tokenizer(TokenizerConfig(kind, 300, lowercase=True), TEXTS, mask=False)
    assert tokenizer.encode("NEWER") == tokenizer.encode("newer")
    assert tokenizer.unk_id not in tokenizer.encode("NEWER")


def test_vocab_size_and_min_frequency_limit_the_merges() -> None:
    small = train_tokenizer(TokenizerConfig("bpe", 40), TEXTS, mask=False)
    assert small.vocab_size == 40
    config = TokenizerConfig("bpe", 300, min_frequency=99)
    unmerged = train_tokenizer(config, TEXTS, mask=False)
    expected = [unmerged.backend.token_to_id(char) for char in "low"]
    assert unmerged.encode("low")[1:] == expected


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "char"])
def test_many_characters_leave_entries_for_merges(kind: Kind) -> None:
    rare = [chr(0x4E00 + i) for i in range(300)] + [chr(0x3B1 + i) * 2 for i in range(24)]
    texts = ["so low", "so new"] * 9 + rare
    config = TokenizerConfig(kind, 120)
    first, *others = (train_tokenizer(config, texts, mask=True) for _ in range(3))
    assert {other.to_str() for other in others} == {first.to_str()}
    assert first.vocab_size <= 120
    assert kind == "char" or len(first.encode("low")) == 1


def test_training_does_not_copy_the_text() -> None:
    texts = ["low " * 2500] * 300  # 3e6 bytes
    tracemalloc.start()
    try:
        train_tokenizer(TokenizerConfig("wordpiece", 60), texts, mask=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1e6


def test_smaller_vocabulary_than_requested_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    train_tokenizer(TokenizerConfig("char", 6), ["aab"], mask=False)
    assert not caplog.messages
    train_tokenizer(TokenizerConfig("char", 300), ["aab"], mask=False)
    assert len(caplog.messages) == 1
    assert "6 tokens, fewer than vocab_size 300" in caplog.messages[0]


def test_characters_beyond_the_vocabulary_are_unknown() -> None:
    tokenizer = train_tokenizer(TokenizerConfig("char", 5), ["aab"], mask=False)
    assert tokenizer.encode("ab") == [4, tokenizer.unk_id]


def test_word_tokenizer_keeps_the_frequent_words() -> None:
    texts = ["low, low newer", "low, newer wide"]
    tokenizer = train_tokenizer(TokenizerConfig("word", 9, min_frequency=2), texts, mask=False)
    words = sorted(tokenizer.vocabulary, key=tokenizer.vocabulary.__getitem__)
    assert words[4:] == ["low", ",", "newer"]  # the more frequent first, then by character
    assert tokenizer.encode("low wide, lower") == [4, tokenizer.unk_id, 5, tokenizer.unk_id]
    assert tokenizer.decode(tokenizer.encode("low, newer")) == "low, newer"
    small = train_tokenizer(TokenizerConfig("word", 5, min_frequency=2), texts, mask=False)
    assert sorted(small.vocabulary) == sorted(["<pad>", "<s>", "</s>", "<unk>", "low"])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (TokenizerConfig("bpe", 5), "vocab_size must exceed the 5 special tokens, got 5"),
        (TokenizerConfig("unigram", 9), "vocab_size must suit a unigram tokenizer .*got 9"),
    ],
)
def test_invalid_options_are_rejected(config: TokenizerConfig, message: str) -> None:
    with pytest.raises(InputError, match=message):
        train_tokenizer(config, TEXTS, mask=True)
