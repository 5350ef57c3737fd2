import itertools
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.data.text.packing import Sentences
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig, train_tokenizer


@cache
def chars() -> Tokenizer:
    return train_tokenizer(TokenizerConfig("char", 99), ["abcdef .!?\n\"'()"], mask=True)


def texts_of(sentences):
    return [chars().decode(sentences.ids[i]) for i in range(len(sentences))]


def test_sentences_end_at_punctuation():
    text = 'ab cd. "ef!" (ab?) cd\nef\n\nab'
    found = Sentences.from_texts([text, "  ", "ab"], chars(), "punctuation", 99)
    assert texts_of(found) == ["ab cd.", '"ef!"', "(ab?)", "cd\nef", "ab", "ab"]
    assert found.document.tolist() == [0, 0, 0, 0, 0, 1]  # empty documents are not numbered


@pytest.mark.parametrize(("sep", "between"), [("punctuation", " "), ("line", "\n")])
def test_byte_level_sentences_keep_the_space_between_them(sep, between):
    tokenizer = train_tokenizer(
        TokenizerConfig("byte_bpe", 265, min_frequency=1), ["so How"], mask=True
    )
    texts = [between.join(["Hi you.", "How so?", " How."]), "How so."]
    found = Sentences.from_texts(texts, tokenizer, sep, 99)
    assert [tokenizer.decode(found.ids[i]) for i in range(len(found))] == [
        "Hi you.",
        " How so?",
        " How.",
        "How so.",
    ]
    assert tokenizer.backend.token_to_id("ĠHow") in found.ids[1]


def test_sentences_end_at_line_ends():
    found = Sentences.from_texts(["ab. cd\nef\n\nab"], chars(), "line", 99)
    assert texts_of(found) == ["ab. cd", "ef", "ab"]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(1, 9))
@settings(max_examples=50, deadline=None)
def test_long_sentences_are_divided_without_loss(lengths, limit):
    texts = ["a" * n for n in lengths]
    found = Sentences.from_texts(texts, chars(), "line", limit)
    assert found.ids.lengths.max() <= limit
    per_document = [0] * len(texts)
    for document, n in zip(found.document, found.ids.lengths, strict=True):
        per_document[document] += n
    assert per_document == lengths


@given(
    st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=5), min_size=1, max_size=5),
    st.integers(7, 15),
    st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_rows_are_packed_greedily(documents, limit, cross):
    texts = ["\n".join("a" * n for n in document) for document in documents]
    found = Sentences.from_texts(texts, chars(), "line", 6)
    borders = [0, *found.pack(limit, cross_documents=cross, separator_cost=1).tolist(), len(found)]
    lengths = found.ids.lengths

    def size(begin, end):
        owners = found.document[begin:end]
        return lengths[begin:end].sum() + (owners[1:] != owners[:-1]).sum()

    for begin, end in itertools.pairwise(borders):
        assert begin < end
        assert size(begin, end) <= limit
        ends_document = end < len(found) and found.document[end] != found.document[end - 1]
        if end < len(found) and (cross or not ends_document):
            assert size(begin, end + 1) > limit
        if not cross:
            assert len(set(found.document[begin:end].tolist())) == 1


@pytest.mark.parametrize("sep", ["line", "punctuation"])
def test_blank_text_has_no_sentence(sep):
    assert len(Sentences.from_texts([" ", "\n\n"], chars(), sep, 5)) == 0
