"""A causal LM with an LSTM in the place of its blocks."""

from typing import Any

import pytest
import torch
from torch import nn

from fourfold.core.errors import InputError
from fourfold.models import (
    RecurrentClassifier,
    RecurrentClassifierConfig,
    RecurrentLM,
    RecurrentLMConfig,
)
from fourfold.models.cost import forward_flops, parameters
from fourfold.models.depths import depths
from fourfold.models.transfer import transfer
from fourfold.tasks.tuning import TuningConfig, adapt

SHAPE: dict[str, Any] = {"d_model": 12, "n_heads": 3, "d_ff": 20, "n_layers": 2, "dropout": 0.0,
                         "vocab_size": 29, "max_len": 16}  # fmt: skip


def model(**options: Any) -> RecurrentLM:
    torch.manual_seed(0)
    return RecurrentLM(RecurrentLMConfig(**{**SHAPE, **options})).double().eval()


def classifier() -> RecurrentClassifier:
    config = RecurrentClassifierConfig(**SHAPE, n_classes=3)
    return RecurrentClassifier(config).double().eval()


def test_the_future_cannot_change_the_past() -> None:
    read, ids = model(), torch.arange(9)[None]
    changed = ids.clone()
    changed[0, 5:] = 28
    before, after = read(ids), read(changed)
    assert torch.equal(after[:, :5], before[:, :5])
    assert not torch.isclose(after[:, 5:], before[:, 5:]).any()


def test_it_is_an_lstm_with_a_tied_output() -> None:
    read, ids = model(), torch.arange(9)[None]
    lstm: Any = nn.LSTM(12, 20, 2, batch_first=True).double()
    lstm.load_state_dict(read.stack.lstm.state_dict())  # type: ignore[union-attr, operator]
    words = read.embed.tokens.weight
    h = read.stack.down(lstm(words[ids])[0])  # type: ignore[operator]
    torch.testing.assert_close(read(ids), h @ words.T)


def test_its_weights_begin_a_classifier() -> None:
    target, source = classifier(), model()
    report = transfer(target, source)
    assert {line[0].split(".")[0] for line in report.new} == {"classifier"}
    ids = torch.arange(9)[None]
    h = source.hidden(ids)
    torch.testing.assert_close(target.hidden(ids), h)
    torch.testing.assert_close(target.classify(h), target.classifier(h[:, -1]))


def test_an_lstm_is_frozen_with_the_rest_below_the_head() -> None:
    frozen = classifier()
    adapt(frozen, TuningConfig(freeze="all"))
    learning = {name for name, p in frozen.named_parameters() if p.requires_grad}
    assert learning == {"classifier.weight", "classifier.bias"}
    assert depths(frozen)[1] == 1


def test_what_it_costs() -> None:
    config = RecurrentLMConfig(**SHAPE)
    parts = parameters(model())
    assert parts.embeddings == 29 * 12
    recurrent = (
        4 * 20 * (12 + 20) + 4 * 20 * (20 + 20) + 20 * 12
    )  # products, and weights but biases
    assert parts.blocks == recurrent + 2 * 2 * 4 * 20 + 12
    assert forward_flops(config, 7).blocks == 2 * 7 * recurrent


def test_what_it_cannot_do() -> None:
    ids = torch.arange(9)[None]
    with pytest.raises(InputError, match="cannot keep documents apart"):
        model().hidden(ids, documents=torch.zeros_like(ids))
    from fourfold.core.cache import KVCache

    with pytest.raises(InputError, match="decode without a cache"):
        model().hidden(ids, cache=KVCache())
