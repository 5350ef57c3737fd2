"""LSTM language model: causality, torch's LSTM, transfer to a classifier, and cost."""

from typing import Any

import pytest
import torch
from torch import nn

from fourfold.core.kv_cache import KVCache
from fourfold.errors import InputError
from fourfold.models import (
    RecurrentClassifier,
    RecurrentClassifierConfig,
    RecurrentLM,
    RecurrentLMConfig,
)
from fourfold.models.analysis.flops import forward_flops, parameters
from fourfold.models.finetuning.config import TuningConfig
from fourfold.models.finetuning.layer_groups import layer_ids
from fourfold.models.finetuning.weight_transfer import transfer
from fourfold.tasks.training.finetuning import apply_finetuning

SHAPE: dict[str, Any] = {
    "d_model": 12,
    "hidden_size": 20,
    "n_layers": 2,
    "dropout": 0.0,
    "vocab_size": 29,
    "max_len": 16,
}


def model(**options: Any) -> RecurrentLM:
    torch.manual_seed(0)
    return RecurrentLM(RecurrentLMConfig(**{**SHAPE, **options})).double().eval()


def classifier() -> RecurrentClassifier:
    config = RecurrentClassifierConfig(**SHAPE, n_classes=3)
    return RecurrentClassifier(config).double().eval()


def test_later_tokens_do_not_change_earlier_logits() -> None:
    lm = model()
    ids = torch.arange(9)[None]
    changed = ids.clone()
    changed[0, 5:] = 28
    before = lm(ids)
    after = lm(changed)
    assert torch.equal(after[:, :5], before[:, :5])
    assert not torch.isclose(after[:, 5:], before[:, 5:]).any()


def test_logits_equal_torch_lstm_with_tied_output() -> None:
    lm = model()
    ids = torch.arange(9)[None]
    lstm: Any = nn.LSTM(12, 20, 2, batch_first=True).double()
    lstm.load_state_dict(lm.stack.lstm.state_dict())  # type: ignore[union-attr, operator]
    table = lm.embed.tokens.weight
    h = lm.stack.down(lstm(table[ids])[0])  # type: ignore[operator]
    torch.testing.assert_close(lm(ids), h @ table.T)


def test_classifier_starts_from_language_model_weights() -> None:
    target, source = classifier(), model()
    report = transfer(target, source)
    assert {line[0].split(".")[0] for line in report.new} == {"classifier"}
    ids = torch.arange(9)[None]
    h = source.hidden(ids)
    torch.testing.assert_close(target.hidden(ids), h)
    torch.testing.assert_close(target.classify(h), target.classifier(h[:, -1]))


def test_freeze_all_trains_the_classifier_only() -> None:
    frozen = classifier()
    apply_finetuning(frozen, TuningConfig(freeze="all"))
    learning = {name for name, p in frozen.named_parameters() if p.requires_grad}
    assert learning == {"classifier.weight", "classifier.bias"}
    assert layer_ids(frozen)[1] == 1


def test_parameters_and_flops_follow_the_formula() -> None:
    parts = parameters(model())
    assert parts.embeddings == 29 * 12
    recurrent = (
        4 * 20 * (12 + 20) + 4 * 20 * (20 + 20) + 20 * 12
    )  # products, and weights but biases
    assert parts.blocks == recurrent + 2 * 2 * 4 * 20 + 12
    assert forward_flops(model(), 7).blocks == 2 * 7 * recurrent


def test_documents_and_caches_raise() -> None:
    ids = torch.arange(9)[None]
    with pytest.raises(InputError, match="cannot separate packed documents"):
        model().hidden(ids, documents=torch.zeros_like(ids))
    with pytest.raises(InputError, match="cache must be None"):
        model().hidden(ids, cache=KVCache())
