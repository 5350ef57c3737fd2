import tracemalloc

import pytest

from fourfold.core.errors import InputError
from fourfold.data.tokenizer_training import TokenizerConfig, train_tokenizer

TEXTS = ["low lower lowest", "new newer newest wide wider widest", "Größe Nähe nah näher"] * 2


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe", "wordpiece", "char"])
def test_training_twice_gives_the_same(kind):
    # The library's hash maps are seeded anew each time, so this fails where order matters.
    texts = [f"{a}{b}{c}" for a in "abcde" for b in "fghij" for c in "klmno"]
    config = TokenizerConfig(kind, 400, min_frequency=1)
    first, *others = (train_tokenizer(config, texts, mask=True).to_str() for _ in range(6))
    assert others == [first] * 5


def test_lowercase():
    for kind in ("bpe", "byte_bpe", "wordpiece", "unigram", "char"):
        config = TokenizerConfig(kind, 300, lowercase=True)
        tokenizer = train_tokenizer(config, TEXTS, mask=False)
        assert tokenizer.encode("NEWER") == tokenizer.encode("newer")
        assert tokenizer.unk_id not in tokenizer.encode("NEWER")


def test_vocabulary_is_no_larger_than_asked_and_min_frequency_counts():
    small = train_tokenizer(TokenizerConfig("bpe", 40), TEXTS, mask=False)
    assert small.vocab_size == 40
    rare = train_tokenizer(TokenizerConfig("bpe", 300, min_frequency=99), TEXTS, mask=False)
    assert rare.encode("low")[1:] == [rare.core.token_to_id(c) for c in "low"]  # no merge


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "char"])
def test_many_characters_leave_room_for_words_and_the_choice_is_always_the_same(kind):
    rare = [chr(0x4E00 + i) for i in range(300)] + [chr(0x3B1 + i) * 2 for i in range(24)]
    texts = ["so low", "so new"] * 9 + rare
    config = TokenizerConfig(kind, 120)
    first, *others = (train_tokenizer(config, texts, mask=True) for _ in range(3))
    assert {other.to_str() for other in others} == {first.to_str()}
    assert first.vocab_size <= 120
    assert kind == "char" or len(first.encode("low")) == 1


def test_training_holds_no_second_copy_of_the_text():
    texts = ["low " * 2500] * 300
    tracemalloc.start()
    try:
        train_tokenizer(TokenizerConfig("wordpiece", 60), texts, mask=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1e6  # of 3e6


def test_a_vocabulary_that_the_text_does_not_fill_is_told(caplog):
    train_tokenizer(TokenizerConfig("char", 6), ["aab"], mask=False)
    assert not caplog.messages
    train_tokenizer(TokenizerConfig("char", 300), ["aab"], mask=False)
    assert caplog.messages == [
        "tokenizer: the text gives 6 entries, fewer than the vocab_size of 300."
    ]


def test_characters_beyond_the_vocabulary_are_unknown():
    tokenizer = train_tokenizer(TokenizerConfig("char", 5), ["aab"], mask=False)
    assert tokenizer.encode("ab") == [4, tokenizer.unk_id]


def test_bad_options():
    with pytest.raises(InputError, match="'wrod' is not a kind of tokenizer: choose among bpe"):
        train_tokenizer(TokenizerConfig("wrod"), TEXTS, mask=False)
    with pytest.raises(InputError, match="vocab_size=5 leaves no room"):
        train_tokenizer(TokenizerConfig("bpe", 5), TEXTS, mask=True)
    with pytest.raises(InputError, match="vocab_size=9 gives no unigram tokenizer: The vocabulary"):
        train_tokenizer(TokenizerConfig("unigram", 9), TEXTS, mask=True)
