"""Estimated bytes against the tensors that autograd really keeps."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fourfold.analysis.memory import (
    activation_bytes,
    split_batch,
    state_memory,
    training_memory,
)
from fourfold.core.attention import attention_backend
from fourfold.core.block import Stack
from fourfold.core.config import TransformerConfig
from fourfold.errors import InputError
from fourfold.models import (
    CausalLMConfig,
    EncoderDecoderConfig,
    MaskedLMConfig,
    SequenceClassifierConfig,
    ViT,
    ViTConfig,
)
from fourfold.models.recurrent.language_model import RecurrentLayers, RecurrentLMConfig
from fourfold.optim import OptimizerConfig, make_optimizer

B, T, S = 8, 40, 24
SHAPE: dict[str, Any] = {"d_model": 64, "n_heads": 4, "d_ff": 256, "n_layers": 2, "dropout": 0.0}


def kept(stack: Stack, x: Tensor, memory: Tensor | None, *, mixed: bool) -> int:
    """Bytes that a forward pass keeps: every storage once, no weights, no row statistics."""
    weights = {shape for p in stack.parameters() for shape in (p.shape, p.shape[::-1])}
    storages: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.shape not in weights and tensor.numel() > 4 * B * T:
            storages[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with (
        attention_backend("sdpa"),  # what a GPU does; short sequences on a CPU go another way
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=mixed),
    ):
        stack(x, memory=memory)
    return sum(tensor.untyped_storage().nbytes() for tensor in storages.values())


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"activation": "gelu"},
        {"activation": "gelu", "norm_placement": "pre"},
        {"activation": "silu", "feed_forward": "glu"},
        {"n_kv_heads": 2},
        {"norm_placement": "pre", "rope_theta": 1e4},
        {"norm_placement": "pre", "n_kv_heads": 2, "qk_norm": "head"},
        {"norm_placement": "inside", "n_kv_heads": 2, "qk_norm": "all", "rope_theta": 1e4},
        {"norm_placement": "sandwich", "layer_scale": 0.1},
        {"norm_placement": "pre", "parallel": True},
        {"norm_placement": "inside", "parallel": True},
    ],
)
def test_activations_of_a_stack_match_autograd(changes: dict[str, Any], precision: str) -> None:
    config = TransformerConfig(**SHAPE, **changes)
    x = torch.randn(B, T, 64).requires_grad_() * 1.0
    measured = kept(Stack(config), x, None, mixed=precision != "32-true")
    assert activation_bytes(config, B * T, precision=precision) == measured


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize(
    "changes",
    [
        {"norm_placement": "pre"},
        {"norm_placement": "post"},
        {"norm_placement": "pre", "n_kv_heads": 2, "qk_norm": "head", "rope_theta": 1e4},
        {"norm_placement": "sandwich", "n_kv_heads": 2, "qk_norm": "all", "layer_scale": 0.1},
        {"norm_placement": "pre", "parallel": True},
    ],
)
def test_activations_of_an_encoder_decoder_match_autograd(
    changes: dict[str, Any], precision: str
) -> None:
    config = EncoderDecoderConfig(**SHAPE, **changes)
    mixed = precision != "32-true"
    x = torch.randn(B, T, 64).requires_grad_() * 1.0
    y = torch.randn(B, S, 64).requires_grad_() * 1.0
    measured = kept(Stack(config), y, None, mixed=mixed)
    measured += kept(Stack(config, cross_attention=True), x, y, mixed=mixed)
    assert activation_bytes(config, B * T, B * S, precision) == measured


def test_dropout_masks_take_one_byte_per_element() -> None:
    with_dropout = TransformerConfig(**{**SHAPE, "dropout": 0.1})
    extra = activation_bytes(with_dropout, T) - activation_bytes(TransformerConfig(**SHAPE), T)
    assert extra == 2 * 2 * T * 64  # layers, sub-layers


@pytest.mark.parametrize(
    ("precision", "optimizer", "replicated", "weights", "gradients", "states"),
    [
        ("32-true", "adamw", False, 4, 4, 8),
        ("bf16-mixed", "adam", False, 6, 4, 8),
        ("bf16-mixed", "adam", True, 6, 8, 8),
        ("bf16-true", "sgd", False, 2, 2, 2),
    ],
)
def test_bytes_per_parameter(
    precision: str, optimizer: str, replicated: bool, weights: int, gradients: int, states: int
) -> None:
    memory = training_memory(
        ViTConfig(), 1000, 1, precision=precision, optimizer=optimizer, replicated=replicated
    )
    assert (memory.weights, memory.gradients) == (1000 * weights, 1000 * gradients)
    assert memory.optimizer == 1000 * states
    assert memory.loss == 0  # logits of 1,000 classes are negligible
    assert memory.total == 1000 * (weights + gradients + states) + memory.activations


def test_frozen_weights_have_no_gradient_and_no_optimizer_state() -> None:
    some = training_memory(ViTConfig(), 1000, 1, n_trained=10, replicated=True)
    assert (some.weights, some.gradients, some.optimizer) == (4000, 80, 80)


def test_muon_stores_one_value_for_each_weight_of_a_hidden_matrix() -> None:
    memory = training_memory(ViTConfig(), 1000, 1, optimizer="muon", n_hidden=700)
    assert memory.optimizer == 4 * (700 + 2 * 300)
    model = ViT(ViTConfig(d_model=8, n_layers=1, n_heads=2, d_ff=12, image_size=8, patch_size=4))
    optimizer = make_optimizer(model, OptimizerConfig("muon"))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    states = (x for values in optimizer.state.values() for name, x in values.items())
    n_states = sum(x.numel() for x in states if torch.is_tensor(x) and x.dim())
    weights = 2 * sum(p.numel() for p in model.parameters())
    assert state_memory(model, "32-true", "muon") == 4 * (weights + n_states)


@pytest.mark.parametrize("depth", [1, 2])
def test_activations_of_an_lstm_match_autograd(depth: int) -> None:
    config = RecurrentLMConfig(
        vocab_size=9, d_model=64, hidden_size=256, n_layers=depth, dropout=0.0
    )
    storages = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.numel() >= B * T:
            storages[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    stack = RecurrentLayers(config)
    weights = {p.untyped_storage().data_ptr() for p in stack.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        stack(torch.randn(B, T, 64).requires_grad_() * 1.0)
    kept = sum(x.untyped_storage().nbytes() for p, x in storages.items() if p not in weights)
    assert activation_bytes(config, B * T) == pytest.approx(kept, rel=0.1)


def test_loss_does_not_hold_all_logits() -> None:
    tokens = 512 * 1024
    memory = training_memory(CausalLMConfig(), 124_439_808, tokens)
    assert memory.loss < tokens * 50257 * 4 / 30


def test_models_without_vocabulary_head_store_no_logits() -> None:
    classifier = SequenceClassifierConfig(n_classes=2)
    assert training_memory(classifier, 109_483_778, 4096).loss == 0
    assert training_memory(MaskedLMConfig(), 109_514_298, 4096).loss > 0


@pytest.mark.parametrize(("name", "value"), [("precision", "fp7"), ("optimizer", "lion")])
def test_unknown_precision_or_optimizer_raises(name: str, value: str) -> None:
    with pytest.raises(InputError, match=value):
        training_memory(ViTConfig(), 1, 1, **{name: value})


@pytest.mark.parametrize(
    ("total", "devices", "limit", "expected"),
    [(512, 1, 512, (512, 1)), (512, 1, 100, (64, 8)), (512, 8, 16, (16, 4)), (480, 8, 12, (12, 5))],
)
def test_micro_batches_of_samples_divide_the_batch_exactly(
    total: int, devices: int, limit: int, expected: tuple[int, int]
) -> None:
    micro, accumulation = split_batch(total, devices, lambda rows: rows <= limit, exact=True)
    assert (micro, accumulation) == expected
    assert micro * accumulation * devices == total


def test_micro_batches_of_tokens_are_rounded_down() -> None:
    assert split_batch(25000, 1, lambda tokens: tokens <= 9000, exact=False) == (8333, 3)


@pytest.mark.parametrize(("total", "devices"), [(10, 4), (2, 4), (10, 0)])
def test_indivisible_batch_raises(total: int, devices: int) -> None:
    with pytest.raises(
        InputError, match=f"--devices must divide the global batch of {total}, got {devices}"
    ):
        split_batch(total, devices, lambda rows: True, exact=True)


def test_too_little_memory_raises() -> None:
    with pytest.raises(InputError, match="not even the smallest"):
        split_batch(8, 2, lambda rows: False, exact=True)
