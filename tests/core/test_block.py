"""The block against its formulas."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fourfold.core.config import TransformerConfig
from fourfold.core.masks import Lowered, Mask
from fourfold.core.stack import Block, FeedForward, Stack
from tests.tiny import assert_same, backend


def config(**changes: Any) -> TransformerConfig:
    shape = {"d_model": 12, "n_layers": 3, "n_heads": 3, "d_ff": 20, "dropout": 0.0}
    return TransformerConfig(**{**shape, **changes})


def states(*shape: int) -> Tensor:
    return torch.randn(*shape, 12, dtype=torch.float64)


def by_hand(block: Block, x: Tensor, memory: Tensor | None, pre: bool) -> Tensor:
    parts = [(block.attn_norm, lambda y: block.attn(y))]
    if memory is not None:
        parts.append((block.cross_attn_norm, lambda y: block.cross_attn(y, memory)))
    parts.append((block.ff_norm, block.ff))
    for norm, sublayer in parts:
        x = x + sublayer(norm(x)) if pre else norm(x + sublayer(x))
    return x


@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_placement_of_norms(placement: str, cross: bool, norm: str) -> None:
    given = config(norm_placement=placement, norm=norm)
    stack = Stack(given, cross_attention=cross).double()
    for parameter in stack.parameters():
        nn.init.normal_(parameter)
    x, memory = states(2, 4), states(2, 5) if cross else None
    expected = x
    for block in stack.blocks:
        expected = by_hand(block, expected, memory, placement == "pre")
    if placement == "pre":
        assert not isinstance(stack.norm, nn.Identity)
        expected = stack.norm(expected)
    assert_same(stack(x, memory=memory), expected)


@pytest.mark.parametrize(
    ("activation", "formula"),
    [
        ("relu", lambda x: x.clamp(min=0)),
        ("gelu", lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5))),
        (
            "gelu_tanh",
            lambda x: x / (1 + (-2 * (2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)).exp()),
        ),
        ("quick_gelu", lambda x: x / (1 + (-1.702 * x).exp())),
        ("silu", lambda x: x / (1 + (-x).exp())),
    ],
)
@pytest.mark.parametrize("kind", ["mlp", "glu"])
@pytest.mark.parametrize("bias", [True, False])
def test_feed_forward(activation: str, formula: Any, kind: str, bias: bool) -> None:
    ff = FeedForward(config(activation=activation, feed_forward=kind, bias=bias)).double()
    x = states(2, 3)
    hidden = formula(F.linear(x, ff.up.weight, ff.up.bias))
    if kind == "glu":
        hidden = hidden * F.linear(x, ff.gate.weight, ff.gate.bias)
    assert_same(ff(x), F.linear(hidden, ff.down.weight, ff.down.bias))
    assert any("bias" in key for key, _ in ff.named_parameters()) is bias


def test_no_bias_anywhere() -> None:
    stack = Stack(config(bias=False, norm_placement="pre"), cross_attention=True)
    assert not [key for key, _ in stack.named_parameters() if "bias" in key]


def test_heads_of_any_width() -> None:
    block = Block(config(d_model=12, n_heads=5, d_head=3, d_value=7)).double()
    assert block.attn.q.weight.shape == block.attn.k.weight.shape == (15, 12)
    assert block.attn.v.weight.shape == (35, 12)
    assert block.attn.out.weight.shape == (12, 35)
    assert block(states(2, 4), Lowered()).shape == (2, 4, 12)


def test_a_bias_reaches_every_block() -> None:
    stack, x = Stack(config()).double(), states(2, 4)
    nobody_but_oneself = torch.full((4, 4), -1e9, dtype=torch.float64).fill_diagonal_(0)
    alone = torch.stack([stack(x[:, i : i + 1])[:, 0] for i in range(4)], dim=1)
    for name in ("naive", "sdpa", "flex"):
        with backend(name):
            assert_same(stack(x, bias=nobody_but_oneself), alone)


def test_drop_path_grows_with_depth_and_keeps_the_mean() -> None:
    stack = Stack(config(drop_path=0.4)).double()
    assert [float(block.kept) for block in stack.blocks] == [1.0, 0.8, 0.6]
    block, y = stack.blocks[2], states(1, 1).expand(20000, 1, -1)
    dropped = block._drop(y)
    skipped = (dropped == 0).all(-1).squeeze()
    assert skipped.double().mean().item() == pytest.approx(0.4, abs=0.02)
    assert_same(dropped[~skipped], y[~skipped] / 0.6)
    assert torch.equal(block.eval()._drop(y), y)


def test_a_rare_drop_is_as_rare_in_half_precision() -> None:
    """Lightning builds and runs a bf16-true model with bf16 as torch's own type."""
    block = Block(config(), drop_path=0.003).bfloat16()
    y = torch.ones(100_000, 1, 1)
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.bfloat16)
        skipped = (block._drop(y) == 0).double().mean().item()
    finally:
        torch.set_default_dtype(before)
    assert skipped == pytest.approx(0.003, rel=0.2)


@pytest.mark.parametrize("dropout", ["dropout", "attn_dropout", "ff_dropout", "drop_path"])
def test_chance_rests_in_evaluation(dropout: str) -> None:
    stack, x = Stack(config(**{dropout: 0.5})).double(), states(2, 4)
    assert not torch.equal(stack(x), stack(x))
    stack.eval()
    assert torch.equal(stack(x), stack(x))


def test_dropout_leaves_flex_to_a_dense_mask() -> None:
    stack, x = Stack(config(attn_dropout=0.5)).double().train(), states(2, 4)
    with backend("flex"):
        stack(x, Mask(window=2))
