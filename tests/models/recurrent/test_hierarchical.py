"""Hierarchical attention network: padding, poolings and weights against a loop over sentences."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from fourfold.errors import InputError
from fourfold.models import HierarchicalClassifier, HierarchicalClassifierConfig

TINY: dict[str, Any] = {
    "d_embed": 6,
    "d_model": 8,
    "n_heads": 2,
    "d_ff": 12,
    "vocab_size": 19,
    "n_classes": 3,
    "max_len": 5,
    "max_sentences": 4,
}
# Word ids of each sentence of each document.
DOCUMENTS = [
    [[3, 4, 5, 6, 7]],
    [[8], [9, 10], [11, 12, 13, 14]],
    [[15, 16], [17], [18, 3, 4], [5, 6, 7, 8, 9]],
    [[2]],
]
variants = pytest.mark.parametrize(
    ("encoder", "pool", "levels"),
    list(product(("gru", "block"), ("mean", "max", "attention"), (2, 1))),
)


def build(**options: Any) -> Any:
    torch.manual_seed(0)
    model = HierarchicalClassifier(HierarchicalClassifierConfig(**{**TINY, **options}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model.double().eval()


def batch(documents: list[list[list[int]]]) -> tuple[Tensor, list[int], list[int]]:
    """Return a batch whose padding consists of random words."""
    sentences = [sentence for document in documents for sentence in document]
    n_words = [len(sentence) for sentence in sentences]
    ids = torch.randint(19, (len(sentences), max(n_words)))
    for row, sentence in zip(ids, sentences, strict=True):
        row[: len(sentence)] = torch.tensor(sentence)
    return ids, n_words, [len(document) for document in documents]


def pooled(pooling: Any, h: Tensor) -> Tensor:
    """Pool the annotations (T, D) of one sequence, one by one."""
    if pooling.pool == "mean":
        return h.sum(0) / len(h)
    if pooling.pool == "max":
        return torch.stack([max(channel) for channel in h.T])
    scores = [torch.tanh(pooling.project.weight @ x + pooling.project.bias) for x in h]
    powers = [torch.exp(u @ pooling.context) for u in scores]
    return sum((p / sum(powers) * x for p, x in zip(powers, h, strict=True)), torch.zeros(8))


def encoded(level: Any, x: Tensor) -> Tensor:
    """Encode one sequence (T, width) without padding into a vector."""
    if level.gru is not None:
        return pooled(level.pool, level.gru(x[None])[0][0])
    h = level.project(x) + level.positions(slice(0, len(x)))
    return pooled(level.pool, level.stack(h[None])[0])


@variants
def test_logits_equal_those_of_a_loop(encoder: str, pool: str, levels: int) -> None:
    model = build(encoder=encoder, pool=pool, levels=levels)
    expected = []
    for document in DOCUMENTS:
        words = [model.embed.tokens(torch.tensor(sentence)) for sentence in document]
        if levels == 1:
            vector = encoded(model.words, torch.cat(words))
        else:
            vectors = torch.stack([encoded(model.words, x) for x in words])
            vector = encoded(model.sentences, vectors)
        expected.append(model.head(vector))
    torch.testing.assert_close(model(*batch(DOCUMENTS)), torch.stack(expected))


@variants
def test_document_alone_equals_its_row_in_a_batch(encoder: str, pool: str, levels: int) -> None:
    model = build(encoder=encoder, pool=pool, levels=levels).float()
    logits = model(*batch(DOCUMENTS))
    assert logits.isfinite().all()
    for row, document in enumerate(DOCUMENTS):
        torch.testing.assert_close(model(*batch([document]))[0], logits[row], rtol=0, atol=1e-6)


@variants
def test_weights_are_distributions_over_real_words(encoder: str, pool: str, levels: int) -> None:
    model = build(encoder=encoder, pool=pool, levels=levels)
    ids, n_words, n_sentences = batch(DOCUMENTS)
    words, sentences = model.weights(ids, n_words, n_sentences)
    real = torch.arange(5) < torch.tensor(n_words)[:, None]
    assert (words[~real] == 0).all()
    assert (words >= 0).all()
    totals = words.sum(1)
    places = torch.arange(4) < torch.tensor(n_sentences)[:, None]
    assert (sentences[~places] == 0).all()
    if levels == 1:
        totals = torch.stack([part.sum() for part in totals.split(n_sentences)])
        assert (sentences[places] == 1).all()
    else:
        torch.testing.assert_close(sentences.sum(1), torch.ones(4, dtype=torch.double))
    torch.testing.assert_close(totals, torch.ones_like(totals))
    if pool == "mean" and levels == 2:
        expected = real / torch.tensor(n_words).double()[:, None]
        torch.testing.assert_close(words, expected)


def test_weights_of_maximum_count_the_channels_of_each_word() -> None:
    model = build(pool="max")
    ids = torch.tensor([[4, 5, 6]])
    h = model.words.gru(model.embed.tokens(ids))[0][0]  # (T, D)
    counts = torch.bincount(h.argmax(0), minlength=3)
    torch.testing.assert_close(model.weights(ids, [3], [1])[0][0], counts / 8.0, check_dtype=False)


@pytest.mark.parametrize("pool", ["mean", "max", "attention"])
def test_gradients_are_finite_and_reach_all_weights(pool: str) -> None:
    model = build(pool=pool)
    model(*batch(DOCUMENTS)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_sizes_of_the_paper() -> None:
    """The number without embedding and output layer does not depend on the data."""
    model = HierarchicalClassifier(HierarchicalClassifierConfig(vocab_size=10, n_classes=5))
    counts = {name: sum(p.numel() for p in part.parameters()) for name, part in named(model)}
    assert counts == {"words": 75_600 + 10_200, "sentences": 45_600 + 10_200}
    assert model.words.pool.context.shape == model.sentences.pool.context.shape == (100,)


def named(model: Any) -> list[tuple[str, Any]]:
    return [("words", model.words), ("sentences", model.sentences)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_model": 7, "n_heads": 7}, "d_model must be even for a bidirectional GRU, got 7"),
        ({"pool": "sum"}, "pool must be one of mean, max, attention"),
        ({"levels": 3}, "levels must be one of 1, 2"),
        ({"max_sentences": 0}, "max_sentences must be at least 1, got 0"),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        HierarchicalClassifierConfig(**{**TINY, **options})


def test_more_sentences_than_positions_are_rejected() -> None:
    model = build(encoder="block")
    with pytest.raises(InputError, match="must have at most max_len = 4 tokens, got 5"):
        model(torch.ones(5, 2, dtype=torch.long), [2] * 5, [5])
