from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.data.text.masking import Masking, MaskingConfig, _select
from fourfold.errors import InputError
from fourfold.losses import IGNORE_INDEX
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig, train_tokenizer


@cache
def tokenizer(has_mask: bool = True) -> Tokenizer:
    texts = ["unhappily the quick brown foxes jumped over lazy dogs running happily"] * 3
    return train_tokenizer(TokenizerConfig("wordpiece", 70), texts, mask=has_mask)


def text_rows(n_rows, width, seed=0):
    """Random rows from BOS to EOS with padding."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, tokenizer().vocab_size, (n_rows, width))
    for row in ids:
        end = rng.integers(2, width)
        row[0], row[end], row[end + 1 :] = 1, 2, 0
    return ids


def mask(ids, epoch=0, rows=None, seed=0, **config):
    rows = np.arange(len(ids)) if rows is None else rows
    return Masking(MaskingConfig(**config), tokenizer(), seed)(ids, rows, epoch)


@given(st.integers(0, 99), st.integers(3, 40), st.booleans(), st.floats(0.05, 0.9))
@settings(max_examples=60, deadline=None)
def test_special_tokens_are_neither_targets_nor_replacements(seed, width, whole, rate):
    ids = text_rows(6, width, seed)
    inputs, targets = mask(ids, seed=seed, whole_words=whole, mlm_probability=rate)
    chosen = targets != IGNORE_INDEX
    assert (targets[chosen] == ids[chosen]).all()
    assert (inputs[~chosen] == ids[~chosen]).all()
    assert not np.isin(targets[chosen], [0, 1, 2, 3, 4]).any()
    assert not np.isin(inputs[chosen], [0, 1, 2, 3]).any()
    ordinary = (ids > 4).sum(1)
    assert (chosen.sum(1) >= np.minimum(ordinary, 1)).all()
    if not whole:
        assert (
            chosen.sum(1) == np.minimum(ordinary, np.maximum(1, np.round(ordinary * rate)))
        ).all()


@pytest.mark.parametrize("whole", [False, True])
def test_replacement_fractions_are_those_of_bert(whole):
    ids = text_rows(400, 128)
    inputs, targets = mask(ids, whole_words=whole)
    chosen = targets != IGNORE_INDEX
    n_chosen = chosen.sum()
    assert n_chosen / (ids > 4).sum() == pytest.approx(0.15, abs=0.006)
    masked = inputs[chosen] == 4
    kept = inputs[chosen] == ids[chosen]
    assert masked.mean() == pytest.approx(0.8, abs=0.02)
    assert kept.mean() == pytest.approx(0.1 + 0.1 / 60, abs=0.015)
    strange = inputs[chosen][~masked & ~kept]
    assert len(np.unique(strange)) > 50  # random tokens are sampled from the whole vocabulary
    target_rates = chosen[:, 1:100].mean(0)
    assert target_rates.std() < 0.05  # all positions are equally likely


def test_whole_words_are_masked_together():
    words = tokenizer()
    ids = np.array([[1, *words.encode("unhappily the quick brown foxes jumped over lazy dogs"), 2]])
    numbers = words.word_starts(ids).cumsum(1)[0]
    assert len(numbers) > numbers[-1]  # some words have several tokens
    single = 0
    for epoch in range(60):
        chosen = mask(ids, epoch, whole_words=True, mlm_probability=0.3)[1][0] != IGNORE_INDEX
        for number in set(numbers[chosen]):
            assert chosen[numbers == number].all()
        single += (mask(ids, epoch, mlm_probability=0.3)[1][0] != IGNORE_INDEX)[
            numbers == 2
        ].sum() == 1
    assert single  # without the option, words are masked in part


def test_words_of_two_tokens_are_selected_as_often_as_single_tokens():
    order = np.random.default_rng(0).random((4000, 32)).repeat(2, 1)  # 32 words of two tokens
    n_selected = _select(np.ones((4000, 64), bool), order, 9 / 64).sum(1)
    assert set(n_selected) == {8, 10}
    assert abs(n_selected.mean() - 9) < 0.1


def test_masks_depend_on_seed_epoch_and_row_alone():
    ids = text_rows(9, 30)
    first, again, other = (mask(ids, epoch)[1] for epoch in (3, 3, 4))
    assert (first == again).all()
    assert (first != other).any(1).sum() > 5
    chosen = np.array([7, 2])
    padded = np.pad(ids[chosen], ((0, 0), (0, 11)))
    assert (mask(padded, 3, chosen)[1][:, :30] == first[chosen]).all()
    assert (mask(ids, 3, seed=1)[1] != first).any()


def test_static_masks_repeat_after_dupe_factor_epochs():
    ids = text_rows(9, 30)
    masks = [mask(ids, epoch, dupe_factor=3)[1] for epoch in range(6)]
    for epoch in range(3):
        assert (masks[epoch] == masks[epoch + 3]).all()
    assert (masks[0] != masks[1]).any()
    assert (masks[1] != masks[2]).any()


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("mlm_probability", 0.0, "must be above 0 and below 1, got 0.0"),
        ("mlm_probability", 1.0, "must be above 0 and below 1, got 1.0"),
        ("mask_replace_prob", 0.95, "must be at least 0.* and at most 1.*, got 1.05"),
    ],
)
def test_option_out_of_range_raises(option, value, message):
    with pytest.raises(InputError, match=rf"masking\.{option} .*{message}"):
        Masking(MaskingConfig(**{option: value}), tokenizer(), 0)


@pytest.mark.parametrize(("masked", "random"), [(1.0, 0.0), (0.8, 0.2), (0.8, 0.0), (0.0, 1.0)])
def test_replacement_fractions_follow_the_options(masked, random):
    ids = text_rows(400, 128)
    inputs, targets = mask(ids, mask_replace_prob=masked, random_replace_prob=random)
    chosen = targets != IGNORE_INDEX
    is_mask = inputs[chosen] == tokenizer().mask_id
    same = inputs[chosen] == ids[chosen]
    assert is_mask.mean() == pytest.approx(masked, abs=0.02)
    # A random token can equal the original one.
    assert same.mean() == pytest.approx(1 - masked - random, abs=0.02 + 1 / 65)
