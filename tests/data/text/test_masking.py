from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.core.errors import InputError
from fourfold.data.masking import Masking, MaskingConfig, _choose
from fourfold.data.tokenizer import Tokenizer
from fourfold.data.tokenizer_training import TokenizerConfig, train_tokenizer
from fourfold.losses import IGNORED


@cache
def tokenizer(mask: bool = True) -> Tokenizer:
    texts = ["unhappily the quick brown foxes jumped over lazy dogs running happily"] * 3
    return train_tokenizer(TokenizerConfig("wordpiece", 70), texts, mask=mask)


def text_rows(n_rows, width, seed=0):
    """Random rows from BOS to EOS, padded."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(5, tokenizer().vocab_size, (n_rows, width))
    for row in ids:
        end = rng.integers(2, width)
        row[0], row[end], row[end + 1 :] = 1, 2, 0
    return ids


def hide(ids, epoch=0, rows=None, seed=0, **config):
    rows = np.arange(len(ids)) if rows is None else rows
    return Masking(MaskingConfig(**config), tokenizer(), seed)(ids, rows, epoch)


@given(st.integers(0, 99), st.integers(3, 40), st.booleans(), st.floats(0.05, 0.9))
@settings(max_examples=60, deadline=None)
def test_no_special_token_is_hidden_or_put_in_and_the_rest_is_untouched(seed, width, whole, rate):
    ids = text_rows(6, width, seed)
    hidden, targets = hide(ids, seed=seed, whole_words=whole, rate=rate)
    chosen = targets != IGNORED
    assert (targets[chosen] == ids[chosen]).all()
    assert (hidden[~chosen] == ids[~chosen]).all()
    assert not np.isin(targets[chosen], [0, 1, 2, 3, 4]).any()
    assert not np.isin(hidden[chosen], [0, 1, 2, 3]).any()
    ordinary = (ids > 4).sum(1)
    assert (chosen.sum(1) >= np.minimum(ordinary, 1)).all()
    if not whole:
        assert (
            chosen.sum(1) == np.minimum(ordinary, np.maximum(1, np.round(ordinary * rate)))
        ).all()


@pytest.mark.parametrize("whole", [False, True])
def test_shares_are_those_of_bert(whole):
    ids = text_rows(400, 128)
    hidden, targets = hide(ids, whole_words=whole)
    chosen = targets != IGNORED
    n_chosen = chosen.sum()
    assert n_chosen / (ids > 4).sum() == pytest.approx(0.15, abs=0.006)
    masked = hidden[chosen] == 4
    kept = hidden[chosen] == ids[chosen]
    assert masked.mean() == pytest.approx(0.8, abs=0.02)
    assert kept.mean() == pytest.approx(0.1 + 0.1 / 60, abs=0.015)
    strange = hidden[chosen][~masked & ~kept]
    assert len(np.unique(strange)) > 50  # random tokens come from all of the vocabulary
    places = chosen[:, 1:100].mean(0)
    assert places.std() < 0.05  # and all places are alike


def test_whole_words_are_hidden_whole():
    words = tokenizer()
    ids = np.array([[1, *words.encode("unhappily the quick brown foxes jumped over lazy dogs"), 2]])
    numbers = words.word_starts(ids).cumsum(1)[0]
    assert len(numbers) > numbers[-1]  # some words have several pieces
    single = 0
    for epoch in range(60):
        chosen = hide(ids, epoch, whole_words=True, rate=0.3)[1][0] != IGNORED
        for number in set(numbers[chosen]):
            assert chosen[numbers == number].all()
        single += (hide(ids, epoch, rate=0.3)[1][0] != IGNORED)[numbers == 2].sum() == 1
    assert single  # without the option words do break


def test_words_of_two_pieces_are_hidden_as_often_as_single_tokens():
    draws = np.random.default_rng(0).random((4000, 32)).repeat(2, 1)  # 32 words of two
    share = _choose(np.ones((4000, 64), bool), draws, 9 / 64).sum(1)
    assert set(share) == {8, 10}
    assert abs(share.mean() - 9) < 0.1


def test_new_masks_every_epoch_and_the_same_in_any_batch():
    ids = text_rows(9, 30)
    first, again, other = (hide(ids, epoch)[1] for epoch in (3, 3, 4))
    assert (first == again).all()
    assert (first != other).any(1).sum() > 5
    chosen = np.array([7, 2])
    padded = np.pad(ids[chosen], ((0, 0), (0, 11)))
    assert (hide(padded, 3, chosen)[1][:, :30] == first[chosen]).all()
    assert (hide(ids, 3, seed=1)[1] != first).any()


def test_static_masks_come_back_in_turn():
    ids = text_rows(9, 30)
    masks = [hide(ids, epoch, static=3)[1] for epoch in range(6)]
    for epoch in range(3):
        assert (masks[epoch] == masks[epoch + 3]).all()
    assert (masks[0] != masks[1]).any()
    assert (masks[1] != masks[2]).any()


@pytest.mark.parametrize("bad", [{"rate": 0.0}, {"rate": 1.0}, {"static": -1}])
def test_bad_options(bad):
    with pytest.raises(InputError, match="0 < rate < 1"):
        Masking(MaskingConfig(**bad), tokenizer(), 0)


@pytest.mark.parametrize(("masked", "random"), [(1.0, 0.0), (0.8, 0.2), (0.8, 0.0), (0.0, 1.0)])
def test_other_shares(masked, random):
    ids = text_rows(400, 128)
    hidden, targets = hide(ids, masked=masked, random=random)
    chosen = targets != IGNORED
    is_mask = hidden[chosen] == tokenizer().mask_id
    same = hidden[chosen] == ids[chosen]
    assert is_mask.mean() == pytest.approx(masked, abs=0.02)
    # A random token is the old one in one of so many cases.
    assert same.mean() == pytest.approx(1 - masked - random, abs=0.02 + 1 / 65)


@pytest.mark.parametrize("bad", [{"masked": 0.9, "random": 0.2}, {"masked": -0.1}, {"random": -1}])
def test_shares_that_cannot_be(bad):
    with pytest.raises(InputError, match="their sum"):
        Masking(MaskingConfig(**bad), tokenizer(), 0)


def test_no_mask_token():
    with pytest.raises(InputError, match="no mask token"):
        Masking(MaskingConfig(), tokenizer(mask=False), 0)
