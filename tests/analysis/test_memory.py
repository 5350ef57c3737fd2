"""Estimated bytes against the tensors that autograd really keeps."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fourfold.analysis.memory import split_batch, training_memory
from fourfold.core.attention import attention_backend
from fourfold.errors import InputError
from fourfold.layers.base_model import on_meta
from fourfold.models import (
    CLIP,
    CausalLM,
    CausalLMConfig,
    CLIPConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    MaskedLM,
    MaskedLMConfig,
    Model,
    RecurrentLM,
    RecurrentLMConfig,
    SequenceClassifier,
    SequenceClassifierConfig,
    ViT,
    ViTConfig,
)
from fourfold.optim import OptimizerConfig, make_optimizer

B, T, S = 8, 40, 24
SHAPE: dict[str, Any] = {"d_model": 64, "n_heads": 4, "d_ff": 256, "n_layers": 2, "dropout": 0.0}
TEXT: dict[str, Any] = {**SHAPE, "vocab_size": 50, "max_len": 64, "attn_dropout": 0.0}


def kept(model: Model, inputs: tuple[Tensor, ...], *, mixed: bool) -> int:
    """Bytes that a forward pass on a CPU keeps: every storage once, no weights."""
    own = {x.untyped_storage().data_ptr() for x in (*model.parameters(), *model.buffers())}
    storages: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage
        return tensor

    with (
        attention_backend("sdpa"),  # what a GPU does; short sequences on a CPU go another way
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=mixed),
    ):
        model.hidden(*inputs)
    return sum(storage.nbytes() for storage in storages.values())


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"activation": "quick_gelu"},
        {"activation": "silu", "feed_forward": "glu"},
        {"n_kv_heads": 2},
        {"rope_theta": 1e4, "positions": "none"},
        {"n_kv_heads": 2, "qk_norm": "head"},
        {"norm_placement": "inside", "n_kv_heads": 2, "qk_norm": "all", "rope_theta": 1e4},
        {"norm_placement": "sandwich", "layer_scale": 0.1},
        {"parallel": True},
        {"norm_placement": "inside", "parallel": True},
    ],
)
def test_activations_of_a_decoder_match_autograd(changes: dict[str, Any], precision: str) -> None:
    model = CausalLM(CausalLMConfig(**{**TEXT, **changes}))
    mixed = precision != "32-true"
    first, second = (kept(model, model.example_inputs(T, batch=n), mixed=mixed) for n in (B, 2 * B))
    memory = training_memory(model, B, length=T, precision=precision)
    copies = first - (second - first)
    if mixed and changes.keys() & {"qk_norm", "norm_placement"}:
        # On a GPU, autocast computes norms in fp32, and so copies inputs in bf16.
        assert second - first < memory.activations < 1.5 * (second - first)
        return
    assert memory.activations == second - first
    parameters = 4 * sum(p.numel() for p in model.parameters())
    assert memory.weights == parameters + copies
    assert (copies > 0) is (mixed or "rope_theta" in changes)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("changes", [{}, {"norm_placement": "pre", "n_kv_heads": 2}])
def test_activations_of_an_encoder_decoder_match_autograd(
    changes: dict[str, Any], precision: str
) -> None:
    model = EncoderDecoder(EncoderDecoderConfig(**{**TEXT, **changes}))
    mixed = precision != "32-true"
    first, second = (kept(model, model.example_inputs(T, S, n), mixed=mixed) for n in (B, 2 * B))
    memory = training_memory(model, B, length=T, source=S, precision=precision)
    assert memory.activations == second - first


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize(("mode", "n_again"), [("block", 4), (2, 2), (3, 2)])
def test_with_activation_checkpointing_one_block_at_a_time_is_stored_completely(
    mode: Any, n_again: int, precision: str
) -> None:
    models = [CausalLM(CausalLMConfig(**{**TEXT, "n_layers": n})) for n in (4, 5)]
    four, five = (training_memory(m, B, length=T, precision=precision) for m in models)
    block, stream = five.activations - four.activations, 4 * B * T * 64
    models[0].set_activation_checkpointing(mode)
    memory = training_memory(models[0], B, length=T, precision=precision)
    wanted = four.activations - n_again * (block - stream) + block - stream
    assert memory.activations == pytest.approx(wanted, rel=0.02)
    assert [b.recompute for b in models[0].stack.blocks].count("block") == n_again


def test_with_checkpointed_attention_the_feed_forward_layers_are_stored() -> None:
    model = CausalLM(CausalLMConfig(**TEXT))
    sizes = []
    for mode in ("none", "attention", "block"):
        model.set_activation_checkpointing(mode)
        sizes.append(training_memory(model, B, length=T).activations)
    assert sizes[0] > sizes[1] > sizes[2]


def test_loss_of_a_masked_lm_counts_the_masked_tokens() -> None:
    model = MaskedLM(MaskedLMConfig(**TEXT))
    tenth = training_memory(model, 10 * B, length=T, head_fraction=0.1)
    assert tenth.loss == training_memory(model, B, length=T).loss
    assert replace(tenth, loss=0) == replace(training_memory(model, 10 * B, length=T), loss=0)


def test_dropout_masks_take_one_byte_per_element() -> None:
    sizes = [
        training_memory(ViT(ViTConfig(**{**SHAPE, "dropout": p}, image_size=32)), 1).activations
        for p in (0.0, 0.1)
    ]
    assert sizes[1] - sizes[0] == (1 + 2 * 2) * 5 * 64  # embedding; layers, sub-layers; tokens


def test_attention_is_that_of_a_fused_kernel_and_dropout_does_not_change_it() -> None:
    sizes = [
        training_memory(CausalLM(CausalLMConfig(**{**TEXT, "attn_dropout": p})), 1, length=n)
        for p in (0.0, 0.1)
        for n in (32, 64)
    ]
    assert sizes[0].activations * 2 == sizes[1].activations == sizes[3].activations


def test_the_model_is_not_changed() -> None:
    model = CausalLM(CausalLMConfig(**TEXT)).eval()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    training_memory(model, 2, length=8, precision="bf16-mixed")
    assert not model.training
    assert not torch.is_autocast_enabled("cuda")
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


@pytest.mark.parametrize(
    ("precision", "optimizer", "replicated", "weights", "gradients", "states"),
    [
        ("32-true", "adamw", False, 4, 4, 8),
        ("bf16-mixed", "adam", False, 4, 4, 8),
        ("bf16-mixed", "adam", True, 4, 8, 8),
        ("bf16-true", "sgd", False, 2, 2, 2),
    ],
)
def test_bytes_per_parameter(
    precision: str, optimizer: str, replicated: bool, weights: int, gradients: int, states: int
) -> None:
    model = ViT(ViTConfig(**SHAPE, image_size=32))
    n = sum(p.numel() for p in model.parameters())
    memory = training_memory(
        model, 3, precision=precision, optimizer=optimizer, replicated=replicated
    )
    layers = [m for m in model.modules() if isinstance(m, torch.nn.Linear | torch.nn.Conv2d)]
    copied = sum(layer.weight.numel() for layer in layers)  # by autocast; biases are not stored
    assert memory.weights == n * weights + 2 * copied * (precision == "bf16-mixed")
    assert (memory.gradients, memory.optimizer) == (n * gradients, n * states)
    assert memory.loss == 0  # logits of 1,000 classes are part of the activations


def test_frozen_weights_have_no_gradient_and_no_optimizer_state() -> None:
    model = ViT(ViTConfig(**SHAPE, image_size=32))
    for parameter in model.stack.parameters():
        parameter.requires_grad_(False)
    n = sum(p.numel() for p in model.parameters() if p.requires_grad)
    memory = training_memory(model, 1, replicated=True)
    assert (memory.gradients, memory.optimizer) == (8 * n, 8 * n)
    assert memory.weights == 4 * sum(p.numel() for p in model.parameters())


def test_muon_stores_one_value_for_each_weight_of_a_hidden_matrix() -> None:
    model = ViT(ViTConfig(d_model=8, n_layers=1, n_heads=2, d_ff=12, image_size=8, patch_size=4))
    optimizer = make_optimizer(model, OptimizerConfig("muon"))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    states = (x for values in optimizer.state.values() for name, x in values.items())
    n_states = sum(x.numel() for x in states if torch.is_tensor(x) and x.dim())
    assert training_memory(model, 1, optimizer="muon").optimizer == 4 * n_states


@pytest.mark.parametrize("depth", [1, 2])
def test_activations_of_an_lstm_match_autograd(depth: int) -> None:
    config = RecurrentLMConfig(
        vocab_size=9, d_model=64, hidden_size=256, n_layers=depth, dropout=0.0
    )
    model = RecurrentLM(config)
    measured = kept(model, model.example_inputs(T, batch=B), mixed=False)
    assert training_memory(model, B, length=T).activations == pytest.approx(measured, rel=0.05)


def test_loss_does_not_hold_all_logits() -> None:
    with on_meta():
        model = CausalLM(CausalLMConfig(n_layers=1))
    tokens = 512 * 1024
    assert training_memory(model, 512, length=1024).loss < tokens * 50257 * 4 / 30


def test_models_without_vocabulary_head_store_no_logits() -> None:
    with on_meta():
        classifier = SequenceClassifier(SequenceClassifierConfig(n_layers=1, n_classes=2))
        masked = MaskedLM(MaskedLMConfig(n_layers=1))
    assert training_memory(classifier, 8, length=512).loss == 0
    assert training_memory(masked, 8, length=512).loss > 0


def test_the_contrastive_loss_compares_all_pairs() -> None:
    with on_meta():
        model = CLIP(CLIPConfig(n_layers=1, image_n_layers=1))
    memory = training_memory(model, 10)
    assert memory.loss == 2 * 3 * 4 * 10**2


@pytest.mark.parametrize(("name", "value"), [("precision", "fp7"), ("optimizer", "lion")])
def test_unknown_precision_or_optimizer_raises(name: str, value: str) -> None:
    with pytest.raises(InputError, match=value):
        training_memory(CausalLM(CausalLMConfig(**TEXT)), 1, **{name: value})


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
