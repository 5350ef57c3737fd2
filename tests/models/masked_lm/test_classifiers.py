"""Heads of downstream tasks: pooling, padding, dropout and initialisation."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fourfold.errors import InputError
from fourfold.models import (
    CausalClassifier,
    CausalClassifierConfig,
    SequenceClassifier,
    SequenceClassifierConfig,
    SpanExtractor,
    SpanExtractorConfig,
    TokenClassifier,
    TokenClassifierConfig,
)
from fourfold.tasks import CausalSequenceClassification

TEXT: dict[str, Any] = {
    "d_model": 12,
    "n_layers": 2,
    "n_heads": 3,
    "d_ff": 20,
    "dropout": 0.0,
    "attn_dropout": 0.0,
    "vocab_size": 29,
    "max_len": 16,
}


def randomised(model: nn.Module) -> Any:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model.double().eval()


def sequence(pool: str = "first") -> Any:
    return randomised(SequenceClassifier(SequenceClassifierConfig(**TEXT, n_classes=3, pool=pool)))


def padded() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Three padded rows: ids, mask, ids with other tokens at the padding, and lengths."""
    ids = torch.randint(29, (3, 9))
    mask = torch.arange(9) < torch.tensor([[9], [5], [1]])
    other = torch.where(mask, ids, torch.randint(29, (3, 9)))
    return ids, mask, other, mask.sum(1)


@pytest.mark.parametrize("pool", ["first", "mean"])
def test_padding_does_not_change_the_logits(pool: str) -> None:
    model = sequence(pool)
    ids, mask, other, lengths = padded()
    logits = model(ids, mask=mask)
    torch.testing.assert_close(model(other, mask=mask), logits)
    for row, n in enumerate(lengths):
        torch.testing.assert_close(model(ids[row : row + 1, :n])[0], logits[row])


def test_pool_first_and_mean_follow_their_definition() -> None:
    ids = torch.randint(29, (2, 7))
    for pool in ("first", "mean"):
        model = sequence(pool)
        h = model.encode(ids)
        pooled = h[:, 0] if pool == "first" else h.mean(1)
        head = model.classifier
        torch.testing.assert_close(model(ids), head.classify(torch.tanh(head.pool(pooled))))


def test_unknown_pool_raises() -> None:
    with pytest.raises(InputError, match="pool must be one of first, last, mean, got 'max'"):
        SequenceClassifierConfig(pool="max")


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_causal_classifier_reads_the_last_real_token(bidirectional: bool, side: str) -> None:
    config = CausalClassifierConfig(**{**TEXT, "n_classes": 3, "bidirectional": bidirectional})
    model = randomised(CausalClassifier(config))
    ids, mask, _, lengths = padded()
    if side == "left":
        ids, mask = ids.flip(1), mask.flip(1)
    logits = model.classify(model.hidden(ids, mask=mask), mask)
    for row, n in enumerate(lengths):
        alone = ids[row : row + 1][:, mask[row]]
        assert alone.shape[1] == n
        torch.testing.assert_close(model.classify(model.hidden(alone))[0], logits[row])


def test_a_bidirectional_classifier_sees_later_tokens() -> None:
    ids = torch.randint(29, (1, 7))
    changed = ids.clone()
    changed[0, -1] = (ids[0, -1] + 1) % 29
    for bidirectional in (False, True):
        config = CausalClassifierConfig(**TEXT, n_classes=3, bidirectional=bidirectional)
        model = randomised(CausalClassifier(config))
        first = [model.hidden(given)[:, 0] for given in (ids, changed)]
        assert torch.equal(*first) is not bidirectional
    with pytest.raises(InputError, match=r"lm_weight must be 0 .*, got 0\.5"):
        CausalSequenceClassification(config)


def test_head_dropout_is_active_only_in_training() -> None:
    for kind, config in (
        (SequenceClassifier, SequenceClassifierConfig(**TEXT, n_classes=3, head_dropout=0.5)),
        (TokenClassifier, TokenClassifierConfig(**TEXT, n_classes=3, head_dropout=0.5)),
    ):
        model: Any = randomised(kind(config))  # type: ignore[arg-type]
        ids = torch.randint(29, (2, 7))
        assert torch.equal(model(ids), model(ids))
        model.train()
        assert not torch.equal(model(ids), model(ids))


def test_classifier_is_initialised_like_bert() -> None:
    model = SequenceClassifier(SequenceClassifierConfig(**{**TEXT, "d_model": 120}, n_classes=3))
    for name in ("stack.blocks.0.attn.q.weight", "classifier.pool.weight"):
        assert model.get_parameter(name).std().item() == pytest.approx(0.0176, rel=0.05)
    assert not model.classifier.classify.bias.any()


def test_logits_have_the_documented_shapes() -> None:
    ids, segments = torch.randint(29, (2, 7)), torch.randint(2, (2, 7))
    assert sequence()(ids, segments=segments).shape == (2, 3)
    tags: Any = TokenClassifier(TokenClassifierConfig(**TEXT, n_classes=5))
    assert tags(ids, segments=segments).shape == (2, 7, 5)
    assert SpanExtractor(SpanExtractorConfig(**TEXT))(ids, segments=segments).shape == (2, 7, 2)
