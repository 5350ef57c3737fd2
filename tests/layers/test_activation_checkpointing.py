"""Activation checkpointing: the same gradients from fewer stored activations, with dropout."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from fourfold.core.block import Block, Stack
from fourfold.core.config import TransformerConfig
from fourfold.core.masks import Mask
from fourfold.errors import InputError
from fourfold.models import create
from tests.fixtures.tiny_models import CONFIGS, VARIANTS, build

MODES = ("block", "attention", 1, 2)
RANDOM = {"dropout": 0.3, "drop_path": 0.3}
CASES = (
    {name: (name, {}) for name in CONFIGS}
    | {
        "positions": ("vit", {"positions": "learned", "positions_at": "layers"}),
    }
    | {name: ("causal", VARIANTS[name]) for name in ("window", "gemma2", "cohere")}
)


def gradients(model: Any, mode: Any) -> tuple[dict[str, Tensor], int]:
    """Return the gradients of one training step, and the bytes that autograd stored for it."""
    stored: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        stored[x.untyped_storage()._cdata] = x.untyped_storage().nbytes()
        return x

    model.train().set_activation_checkpointing(mode)
    model.zero_grad()
    torch.manual_seed(1)
    with saved_tensors_hooks(pack, lambda x: x):
        y = model(*model.example_inputs(11, batch=3))
    y = y[0] if isinstance(y, tuple) else y
    y.square().sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}, sum(
        stored.values()
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_the_same_and_fewer_activations_are_stored(case: str, mode: Any) -> None:
    family, changes = CASES[case]
    random = RANDOM if family != "joined" else {"dropout": 0.3}
    model = build(family, **{**random, **changes})
    wanted, all_bytes = gradients(model, "none")
    found, fewer_bytes = gradients(model, mode)
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-12, atol=1e-12, msg=name)
    assert fewer_bytes < all_bytes


@pytest.mark.parametrize(
    ("mode", "calls"),
    [("none", [1, 1, 1, 1]), ("block", [2, 2, 2, 2]), (2, [2, 1, 2, 1]), (3, [2, 1, 1, 2])],
)
def test_chosen_blocks_run_again_in_the_backward_pass(mode: Any, calls: list[int]) -> None:
    model = create("gpt2", n_layers=4, d_model=16, n_heads=2, d_ff=32, vocab_size=9, max_len=8)
    model.set_activation_checkpointing(mode)
    counts = [0] * 4
    for i, block in enumerate(model.stack.blocks):

        def count(module: Block, inputs: Any, i: int = i) -> None:
            counts[i] += 1

        block.attn.register_forward_pre_hook(count)
    model(torch.zeros(1, 8, dtype=torch.long)).sum().backward()
    assert counts == calls


def test_evaluation_runs_each_block_once_and_a_cache_is_extended_once() -> None:
    model = create("gpt2", n_layers=1, d_model=16, n_heads=2, d_ff=32, vocab_size=9, max_len=8)
    model.eval().set_activation_checkpointing("block")
    cache = model.new_cache()
    with torch.no_grad():
        model(torch.zeros(1, 3, dtype=torch.long), cache=cache)
    assert cache.length == 3


def test_models_without_blocks_and_zero_blocks_are_refused() -> None:
    with pytest.raises(InputError, match="must be none for a ResNet"):
        create("resnet18", n_classes=2, device="meta").set_activation_checkpointing("block")
    with pytest.raises(InputError, match="activation_checkpointing"):
        build("causal").set_activation_checkpointing(0)


def test_a_compiled_stack_has_the_same_gradient() -> None:
    config = TransformerConfig(d_model=16, n_layers=2, n_heads=2, d_ff=32, dropout=0.0)
    stack = Stack(config).double()
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    stack(x, Mask(causal=True)).square().sum().backward()
    wanted = {name: p.grad.clone() for name, p in stack.named_parameters()}
    stack.zero_grad()
    for block in stack.blocks:
        block.recompute = "block"
        block.compile(backend="aot_eager")
    stack(x, Mask(causal=True)).square().sum().backward()
    for name, p in stack.named_parameters():
        torch.testing.assert_close(p.grad, wanted[name], rtol=1e-12, atol=1e-12, msg=name)
