"""Span corruption against T5's own test vectors (`preprocessors_test.py`) and by properties."""

from collections import Counter
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fourfold.data import SpanCorruptionData
from fourfold.data.loading.batches import PairBatch
from fourfold.data.text.masking import count_noise, noise_mask, replace_spans, span_lengths
from fourfold.errors import InputError
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig, train_tokenizer


@pytest.mark.parametrize(
    ("max_len", "density", "mean", "raw", "targets"),
    [
        (64, 0.2, 2.0, 70, 22),  # T5's test
        (64, 0.2, 1.0, 63, 27),  # T5's test
        (512, 0.15, 3.0, 568, 114),  # T5's default
        (128, 0.15, 3.0, 141, 29),
        (64, 0.15, 3.0, 70, 14),
    ],
)
def test_lengths_of_t5(max_len: int, density: float, mean: float, raw: int, targets: int) -> None:
    assert span_lengths(max_len, density, mean) == (raw, max_len, targets)


def test_unique_sentinels_of_t5() -> None:
    """`noise_span_to_unique_sentinel` with a vocabulary of 1,000 entries."""
    mask = np.array([True, True, False, False, True, False])
    found = replace_spans(np.arange(10, 16), mask, range(999, 0, -1))
    assert found.tolist() == [999, 12, 13, 998, 15]


def test_example_of_a_sentence() -> None:
    """The spans of ordinary tokens have 3 and 5 tokens, and the noise spans 1 and 3."""
    assert count_noise(12, 0.3, 2.0) == (4, 2)
    # The smallest number is the gap at which a new span begins.
    draws = np.array([9, 9, 0, 9, 9, 9, 9, 9, 9, 9, 9]), np.array([0] + [9] * 10)
    mask = noise_mask(12, 4, 2, draws)
    assert "".join(map(str, mask.astype(int))) == "000100000111"
    words = np.array(["the", "cat", "sat", "on", "the", "mat", "and", "the", "dog", *"xyz"])
    assert " ".join(replace_spans(words, mask, ["X", "Y"])) == "the cat sat X the mat and the dog Y"
    assert " ".join(replace_spans(words, ~mask, ["X", "Y"])) == "X on Y x y z"


@settings(max_examples=300, deadline=None)
@given(
    st.integers(2, 80),
    st.floats(0.01, 0.99),
    st.floats(1.0, 20.0),
    st.integers(0, 2**31),
)
def test_input_and_target_merge_to_the_sequence(
    length: int, density: float, mean: float, seed: int
) -> None:
    n_noise, n_spans = count_noise(length, density, mean)
    rng = np.random.default_rng(seed)
    mask = noise_mask(length, n_noise, n_spans, (rng.random(length), rng.random(length)))
    assert len(mask) == length
    assert mask.sum() == n_noise
    assert not mask[0]
    assert mask[-1]
    assert (mask[1:] & ~mask[:-1]).sum() == n_spans
    ids, sentinels = np.arange(length), 1000 - np.arange(length)
    inputs, targets = (replace_spans(ids, x, sentinels).tolist() for x in (mask, ~mask))
    assert len(inputs) == length - n_noise + n_spans
    assert len(targets) == n_noise + n_spans
    assert [i for i in inputs if i > 900] == [i for i in targets if i > 900]
    spans: dict[int, list[int]] = {}
    for i in targets:
        if i > 900:
            spans[i] = current = []
        else:
            current.append(i)
    merged = [token for i in inputs for token in (spans[i] if i > 900 else [i])]
    assert merged == ids.tolist()


def test_divisions_are_equally_probable() -> None:
    """Six noise tokens in three spans: C(5, 2) divisions, as of `_random_segmentation` of T5."""
    rng, n = np.random.default_rng(0), 5000
    found = Counter()
    for _ in range(n):
        mask = noise_mask(20, 6, 3, (rng.random(20), rng.random(20)))
        runs = "".join(map(str, mask.astype(int))).split("0")
        found[tuple(len(run) for run in runs if run)] += 1
    assert len(found) == 10
    assert max(abs(count - n / 10) for count in found.values()) < 4 * (n / 10) ** 0.5


def data_of(**options: Any) -> SpanCorruptionData:
    given: dict[str, Any] = {
        "tokenizer": TokenizerConfig(kind="byte_bpe", vocab_size=400, extra_ids=20),
        "max_len": 40,
    }
    return SpanCorruptionData(**given | options)


@cache
def characters() -> Any:
    """Return the validation split with a character vocabulary and 50 sentinels."""
    return data_of(tokenizer=TokenizerConfig("char", extra_ids=50)).split("val")


def merged(batch: PairBatch, tokenizer: Tokenizer) -> list[int]:
    """Return the tokens of all rows, with each span in the place of its sentinel."""
    raw = []
    for row in range(len(batch.src)):
        src, tgt = batch.src[row][batch.src_mask[row]], batch.tgt[row][batch.tgt_mask[row]]
        assert src[-1] == tgt[-1] == tokenizer.eos_id
        assert tgt[0] == tokenizer.bos_id
        parts, current = {}, []
        for i in tgt[1:-1].tolist():
            if i in tokenizer.sentinel_ids:
                parts[i] = current = []
            else:
                current.append(i)
        assert list(parts) == tokenizer.sentinel_ids[: len(parts)]
        for i in src[:-1].tolist():
            raw += parts.pop(i) if i in tokenizer.sentinel_ids else [i]
        assert not parts
    return raw


def test_batches_hold_every_token_in_order() -> None:
    data = data_of()
    split, tokenizer = data.split("val"), data.tokenizer
    assert tokenizer.sentinel_ids == list(range(399, 379, -1))  # <extra_id_0> is the last entry
    batch = split.batch(np.arange(len(split)), 3, 5)
    assert (batch.epoch, batch.position) == (3, 5)
    assert batch.src.shape[1] == 40
    raw = merged(batch, tokenizer)
    assert raw == split.ids.tolist()[: len(raw)]
    assert len(split.ids) - len(raw) <= 1
    full = batch.src_mask[:-1], batch.tgt_mask[:-1]
    assert all(mask.all() for mask in full)  # only the last sequence may need padding


@settings(max_examples=100, deadline=None)
@given(
    st.integers(4, 60),
    st.floats(0.01, 0.9),
    st.floats(1.0, 20.0),
    st.integers(2, 400),
    st.integers(0, 9),
)
def test_batches_merge_to_the_tokens_for_all_lengths_and_densities(
    max_len: int, density: float, mean: float, n_tokens: int, epoch: int
) -> None:
    lengths = span_lengths(max_len, density, mean)
    assume(count_noise(lengths[0], density, mean)[1] <= 50)
    ids = characters().ids[:n_tokens]
    split = replace(characters(), ids=ids, lengths=lengths, noise=(density, mean))
    n_rows = n_tokens // lengths[0] + (n_tokens % lengths[0] > 1)
    batch = split.batch(np.arange(n_rows), epoch, 0)
    assert batch.src.shape == (n_rows, lengths[1])
    assert batch.tgt.shape == (n_rows, lengths[2] + 1)
    raw = merged(batch, split.tokenizer)
    assert raw == ids.tolist()[: len(raw)]
    assert n_tokens - len(raw) == (n_tokens % lengths[0] == 1)


def test_spans_depend_on_seed_epoch_and_row_only() -> None:
    split = data_of().split("train")
    batch, alone = split.batch(np.arange(6), 1, 1), split.batch(np.array([4]), 1, 9)
    assert alone.src[0].equal(batch.src[4])
    assert alone.tgt[0].equal(batch.tgt[4])
    assert not split.batch(np.arange(6), 2, 1).src.equal(batch.src)
    assert not data_of(seed=1).split("train").batch(np.arange(6), 1, 1).src.equal(batch.src)
    masks = torch.isin(batch.src, torch.tensor(split.tokenizer.sentinel_ids))
    assert len(masks.unique(dim=0)) == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": TokenizerConfig("char")}, r"must have 2 sentinels .* got 0: set data.token"),
        (
            {"tokenizer": TokenizerConfig("char", extra_ids=1)},
            r"data.tokenizer must have 2 sentinels \(<extra_id_0>, ...\), got 1",
        ),
        ({"noise_density": 1.0}, "noise_density must be above 0 and at most 0.9, got 1"),
        ({"mean_noise_span_length": 0.5}, "mean_noise_span_length must be at least 1"),
        ({"max_len": 3}, "max_len must be at least 4"),
        ({"block_cross_document_attention": True}, "block_cross_document_attention must be false"),
        (
            {"tokenizer": TokenizerConfig("char", vocab_size=100, extra_ids=96)},
            "tokenizer.vocab_size must exceed the 100 special tokens, got 100",
        ),
        ({"tokenizer": TokenizerConfig(extra_ids=-1)}, "tokenizer.extra_ids must be at least 0"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        data_of(**options).split("train")


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe", "wordpiece", "unigram", "word", "char"])
def test_every_kind_of_tokenizer_has_sentinels_at_the_end(kind: Any) -> None:
    texts = ["the cat sat on the mat and the dog ran away.", "a hat, a mat, a cat"] * 20
    config = TokenizerConfig(kind, 300, extra_ids=3)
    tokenizer = Tokenizer.from_str(train_tokenizer(config, texts, mask=False).to_str())
    size = tokenizer.vocab_size
    assert tokenizer.sentinel_ids == [size - 1, size - 2, size - 3]
    assert set(tokenizer.sentinel_ids) < set(tokenizer.special_ids)
    text = "the cat <extra_id_0> mat"  # in a corpus, it is text
    assert not set(tokenizer.encode(text)) & set(tokenizer.sentinel_ids)
    assert tokenizer.decode(tokenizer.encode("the cat")) == "the cat"
    assert tokenizer.encode_special(text).count(size - 1) == 1
