"""Recurrent language model: causality, torch's layers, transfer to a classifier, and cost."""

from typing import Any

import pytest
import torch
from torch import nn

from fourfold.analysis.flops import forward_flops, parameters
from fourfold.errors import InputError
from fourfold.finetuning.config import TuningConfig
from fourfold.finetuning.layer_lr_decay import layer_ids
from fourfold.finetuning.weight_transfer import transfer
from fourfold.generation import beam_search, generate
from fourfold.models import (
    RecurrentClassifier,
    RecurrentClassifierConfig,
    RecurrentLM,
    RecurrentLMConfig,
)
from fourfold.training.finetuning import apply_finetuning

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


@pytest.mark.parametrize("cell", ["gru", "rnn"])
def test_other_cells_are_those_of_torch(cell: str) -> None:
    lm = model(cell=cell)
    assert list(dict(lm.stack.named_children())) == [cell, "dropout", "down"]
    ids = torch.arange(9)[None]
    layers: Any = {"gru": nn.GRU, "rnn": nn.RNN}[cell](12, 20, 2, batch_first=True).double()
    layers.load_state_dict(lm.stack.get_submodule(cell).state_dict())
    table = lm.embed.tokens.weight
    h = lm.stack.down(layers(table[ids])[0])  # type: ignore[operator]
    torch.testing.assert_close(lm(ids), h @ table.T)
    n_gates = {"gru": 3, "rnn": 1}[cell]
    recurrent = n_gates * 20 * (12 + 20 + 20 + 20) + 20 * 12
    assert forward_flops(lm, 7).blocks == 2 * 7 * recurrent


def test_forget_bias_is_added_to_the_forget_gate_of_each_layer() -> None:
    plain, biased = (model(forget_bias=bias).state_dict() for bias in (0.0, 1.5))
    for name, weights in plain.items():
        change = biased[name] - weights
        if name in ("stack.lstm.bias_ih_l0", "stack.lstm.bias_ih_l1"):
            change[20:40] -= 1.5
        torch.testing.assert_close(change, torch.zeros_like(change))


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


def test_steps_with_a_cache_equal_the_whole_sequence() -> None:
    lm, ids = model(), torch.arange(18).view(2, 9)
    logits, cache = lm(ids), lm.new_cache()
    for start, end in ((0, 4), (4, 5), (5, 9)):
        found = lm(ids[:, start:end], cache=cache)
        torch.testing.assert_close(found, logits[:, start:end], rtol=0, atol=1e-12)
    assert cache.length == 9
    assert sum(part.numel() for part in cache.state) == 2 * 2 * 2 * 20  # of any length


def test_generation_with_a_cache_equals_generation_without() -> None:
    lm, ids = model(), torch.arange(8).view(2, 4)
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.normal_(std=0.5)
    options: dict[str, Any] = {"temperature": 1.0, "seed": 2}
    plain = generate(lm, ids, 9, **options, use_cache=False)
    assert torch.equal(generate(lm, ids, 9, **options), plain)
    best = beam_search(lm, ids, 3, max_new_tokens=9, eos_id=2, num_return_sequences=3)
    plain_best = beam_search(
        lm, ids, 3, max_new_tokens=9, eos_id=2, num_return_sequences=3, use_cache=False
    )
    assert torch.equal(best[0], plain_best[0])
    torch.testing.assert_close(best[1], plain_best[1], rtol=0, atol=1e-12)


def test_documents_and_cached_padding_raise() -> None:
    ids = torch.arange(9)[None]
    with pytest.raises(InputError, match="cannot separate packed documents"):
        model().hidden(ids, documents=torch.zeros_like(ids))
    with pytest.raises(InputError, match="mask must be None for a recurrent model with a cache"):
        model().hidden(ids, mask=torch.ones_like(ids).bool(), cache=model().new_cache())


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_state_after_any_division_of_the_tokens_is_that_of_the_whole(cell: str) -> None:
    lm = model(cell=cell)
    ids = torch.randint(29, (3, 9))
    expected = lm.hidden(ids)
    cache = lm.new_cache()
    parts = [lm.hidden(part, cache=cache) for part in ids.split([4, 1, 1, 3], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), expected)
    assert cache.length == 9
    rows = torch.tensor([2, 2, 0])
    cache.reorder(rows)
    more = torch.randint(29, (3, 2))
    torch.testing.assert_close(
        lm.hidden(more, cache=cache), lm.hidden(torch.cat([ids[rows], more], dim=1))[:, 9:]
    )


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_greedy_output_with_the_state_equals_the_recomputed_one(cell: str) -> None:
    lm = model(cell=cell, max_len=60)
    ids = torch.randint(29, (2, 5))
    for weights in lm.parameters():  # large weights, so that the output is no constant
        torch.nn.init.normal_(weights)
    calls = []
    lm.stack.register_forward_pre_hook(lambda _, args: calls.append(args[0].shape[1]))
    cached = generate(lm, ids, 40)
    assert calls == [5, *[1] * 39]  # the work of a step does not depend on the position
    assert torch.equal(cached, generate(lm, ids, 40, use_cache=False))
    assert calls[40:] == list(range(5, 45))
    assert cached[:, 5:].unique().numel() > 5
