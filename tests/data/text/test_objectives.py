"""Prefixes and masked rows of `CausalTextData`, against the examples of the papers' code."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fourfold.data import CausalTextData
from fourfold.data.loading.batches import CausalBatch
from fourfold.data.text.causal_lm import with_masked_rows, with_prefixes
from fourfold.data.text.masking import Masking, MaskingConfig
from fourfold.errors import InputError
from fourfold.losses import IGNORE_INDEX
from fourfold.tokenization.training import TokenizerConfig, train_tokenizer

TOKENIZER = train_tokenizer(TokenizerConfig(kind="char"), ["abcdefghijkl"], mask=True)
EOS = TOKENIZER.eos_id


def batch_of(rows: list[list[int]], documents: list[list[int]] | None = None) -> CausalBatch:
    """Return the batch of rows with T + 1 tokens; -100 among the targets marks padding."""
    ids = torch.tensor(rows)
    numbers = None if documents is None else torch.tensor(documents)
    inputs = ids[:, :-1].masked_fill(ids[:, :-1] == IGNORE_INDEX, EOS)
    return CausalBatch(inputs, ids[:, 1:], numbers, n_bytes=7, n_words=3)


def text(length: int) -> list[int]:
    """Return EOS and `length` different letters."""
    return [EOS, *range(5, 5 + length)]


def test_prefix_of_t5() -> None:
    """`pack_prefix_lm_decoder_only` of T5: P = 3 of the targets 9 1 2 3 4 5 6 7."""
    batch = batch_of([[0, 9, 1, 2, 3, 4, 5, 6, 7]] * 400)
    made = with_prefixes(batch, np.arange(400), seed=0)
    lengths = (made.targets == IGNORE_INDEX).sum(1)
    row = int((lengths == 3).nonzero()[0])
    assert made.ids[row].tolist() == [0, 9, 1, 2, 3, 4, 5, 6]
    assert (made.targets[row] != IGNORE_INDEX).int().tolist() == [0, 0, 0, 1, 1, 1, 1, 1]
    assert made.prefix[row].int().tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    assert made.n_bytes == made.n_words == 0
    # P is uniform from 1 to 7.
    assert lengths.unique().tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert (lengths.bincount()[1:] - 400 / 7).abs().max() < 4 * (400 / 7) ** 0.5


lengths_of = st.lists(st.integers(1, 6), min_size=1, max_size=5)


@settings(max_examples=80, deadline=None)
@given(lengths_of, st.integers(0, 3), st.booleans(), st.integers(0, 9))
def test_no_target_is_visible_to_its_position(
    lengths: list[int], n_padding: int, separate: bool, seed: int
) -> None:
    """Each document has its own prefix, and padding belongs to none."""
    numbers = [i for i, n in enumerate(lengths) for _ in range(n)] + [len(lengths)] * n_padding
    tokens = [*text(sum(lengths)), *[IGNORE_INDEX] * n_padding]
    made = with_prefixes(
        batch_of([tokens] * 3, [numbers] * 3 if separate else None), np.arange(3), seed=seed
    )
    own = numbers if separate else [0] * sum(lengths) + [1] * n_padding
    real = len(tokens) - 1 - n_padding
    assert not made.prefix[:, real:].any()
    for row in range(3):
        for i in range(real):
            if made.targets[row, i] != IGNORE_INDEX and i + 1 < real:
                same = own[i + 1] == own[i]
                assert not (same and made.prefix[row, i + 1])
        for document in set(own[:real]):
            at = [i for i in range(real) if own[i] == document]
            seen = made.prefix[row, at].tolist()
            n_targets = int((made.targets[row, at] != IGNORE_INDEX).sum())
            assert seen == sorted(seen, reverse=True)
            assert n_targets == len(at) - sum(seen) + 1  # the last prefix token has a target
            assert n_targets >= 1
            assert len(at) == 1 or sum(seen) >= 2


def test_prefixes_differ_between_epochs_and_rows_and_not_between_batches() -> None:
    batch = batch_of([text(12)] * 8)
    first = with_prefixes(batch, np.arange(8), seed=0)
    again = with_prefixes(batch, np.arange(8)[::-1].copy(), seed=0)
    assert first.prefix.equal(again.prefix.flip(0))
    assert len(first.prefix.sum(1).unique()) > 1
    later = with_prefixes(batch._replace(epoch=1), np.arange(8), seed=0)
    assert not later.prefix.equal(first.prefix)


def masked(
    batch: CausalBatch, share: float, loss_share: float, **options: Any
) -> tuple[CausalBatch, Masking]:
    masking = Masking(MaskingConfig(**{"mlm_probability": 0.3} | options), TOKENIZER, 0)
    rows = np.arange(len(batch.ids))
    made = with_masked_rows(batch, rows, masking=masking, share=share, loss_share=loss_share)
    return made, masking


def test_masked_tokens_are_targets_one_position_before() -> None:
    """The state before a masked token predicts it, so that a target moves to the left by one."""
    batch = batch_of([text(10)] * 50)
    made, masking = masked(batch, 1.0, 1.0, mask_replace_prob=1.0, random_replace_prob=0.0)
    assert made.prefix.all()
    is_target = made.targets != IGNORE_INDEX
    assert (is_target.sum(1) == 3).all()  # exactly 0.3 of ten
    assert made.targets[is_target].equal(batch.targets[is_target])
    following = is_target[:, :-1]  # the last target follows the row
    assert (made.ids[:, 1:][following] == masking.mask_id).all()
    assert made.ids[:, 1:][~following].equal(batch.ids[:, 1:][~following])
    assert (made.ids[:, 0] == EOS).all()
    assert is_target[:, -1].any()


def test_masked_rows_have_the_wanted_shares() -> None:
    batch = batch_of([text(10)] * 4000)
    made, _ = masked(batch, 0.75, 0.4)
    is_masked = made.prefix.any(1)
    assert made.prefix[is_masked].all()
    assert abs(float(is_masked.double().mean()) - 0.75) < 0.03
    assert made.ids[~is_masked].equal(batch.ids[~is_masked])
    assert made.targets[~is_masked].equal(batch.targets[~is_masked])
    weights = made.weights[:, None] * (made.targets != IGNORE_INDEX)
    assert abs(float(weights[is_masked].sum() / weights.sum()) - 0.4) < 0.03
    # On average, a target of a causal row has the weight that makes the sum the number of tokens.
    assert abs(float(weights.sum()) / 40_000 - 1) < 0.03


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_kept_and_random_tokens_are_targets(share: float) -> None:
    """80 % mask tokens, 10 % random tokens and 10 % kept tokens, none of them special."""
    made, masking = masked(batch_of([text(10)] * 3000), share, share)
    rows = made.prefix.any(1)
    targets, inputs = made.targets[rows][:, :-1], made.ids[rows][:, 1:]
    is_target = targets != IGNORE_INDEX
    inputs, targets = inputs[is_target], targets[is_target]
    mask_share = float((inputs == masking.mask_id).double().mean())
    kept = float((inputs == targets).double().mean())
    assert abs(mask_share - 0.8) < 0.02
    assert abs(kept - 0.1 - 0.1 / len(masking.ordinary_ids)) < 0.02


def test_padding_context_and_separators_are_not_masked() -> None:
    ignored = IGNORE_INDEX
    batch = batch_of([[EOS, 5, 6, EOS, 7, 8, ignored, ignored]] * 200)
    targets = batch.targets.clone()
    targets[:, 0] = IGNORE_INDEX  # a token of the context
    batch = batch._replace(targets=targets)
    made, _ = masked(batch, 1.0, 1.0, mask_replace_prob=1.0, random_replace_prob=0.0)
    assert (made.ids[:, 1] == 5).all()
    assert (made.ids[:, 3] == EOS).all()
    assert (made.ids[:, 6] == EOS).all()  # padding
    assert made.prefix.int().tolist() == [[1, 1, 1, 1, 1, 0, 0]] * 200
    found = set(made.targets[made.targets != IGNORE_INDEX].tolist())
    assert found == {6, 7, 8}


def data_of(objective: str, **options: Any) -> CausalTextData:
    return CausalTextData(
        block_size=16,
        batch_size=4,
        objective=objective,
        tokenizer=TokenizerConfig(kind="byte_bpe", vocab_size=300),
        **options,
    )


@pytest.mark.parametrize("batching", ["blocks", "crops", "documents"])
@pytest.mark.parametrize("objective", ["prefix", "hybrid"])
def test_every_way_of_batching_has_the_objective(batching: str, objective: str) -> None:
    options: dict[str, Any] = {"batching": batching, "too_long": "truncate"}
    split = data_of(objective, **options).split("train")
    batch = split.batch(np.arange(4), 2, 3)
    assert batch.prefix.any()
    assert (batch.epoch, batch.position) == (2, 3)
    one = split.batch(np.arange(2, 3), 2, 9)
    width = one.ids.shape[1]
    assert one.ids[0].equal(batch.ids[2, :width])
    assert one.targets[0].equal(batch.targets[2, :width])
    assert one.prefix[0].equal(batch.prefix[2, :width])


def test_no_masked_rows_is_the_causal_objective() -> None:
    """The tokenizer has a mask token, so that all shares have the same vocabulary."""
    hybrid = data_of("hybrid", masked_rows=0.0)
    batch = hybrid.split("train").batch(np.arange(4), 0, 1)
    causal = data_of("causal")
    causal._tokenizer = hybrid.tokenizer
    expected = causal.split("train").batch(np.arange(4), 0, 1)
    assert hybrid.tokenizer.mask_id is not None
    assert batch.prefix is batch.weights is None
    assert batch.ids.equal(expected.ids)
    assert batch.targets.equal(expected.targets)
    assert batch.n_bytes == expected.n_bytes > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"masked_rows": 1.5}, "masked_rows must be at least 0 and at most 1, got 1.5"),
        ({"masked_loss": -0.1}, "masked_loss must be at least 0"),
        ({"masked_rows": 0.0, "masked_loss": 0.5}, "masked_loss must be 0, like masked_rows"),
        ({"masked_rows": 1.0, "masked_loss": 0.0}, "masked_loss must be 1, like masked_rows"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        data_of(**{"objective": "hybrid"} | options)
