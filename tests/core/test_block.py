"""Transformer block and stack, compared with their formulas."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fourfold.core.block import Block, DropPath, Stack
from fourfold.core.config import TransformerConfig
from fourfold.core.masks import LoweredMask, Mask
from fourfold.errors import InputError
from tests.fixtures.tiny_models import assert_same, backend


def config(**changes: Any) -> TransformerConfig:
    shape = {"d_model": 12, "n_layers": 3, "n_heads": 3, "d_ff": 20, "dropout": 0.0}
    return TransformerConfig(**{**shape, **changes})


def states(*shape: int) -> Tensor:
    return torch.randn(*shape, 12, dtype=torch.float64)


def by_hand(block: Any, x: Tensor, memory: Tensor | None, placement: str, scaled: bool) -> Tensor:
    parts: list[tuple[str, Any]] = [("attn", lambda y: block.attn(y))]
    if memory is not None:
        parts.append(("cross_attn", lambda y: block.cross_attn(y, memory)))
    parts.append(("ff", block.ff))
    start, branches = x, []
    for name, sublayer in parts:
        norm = getattr(block, f"{name}_norm")
        gamma = getattr(block, f"{name}_gamma") if scaled else 1.0
        if placement == "pre":
            branch = gamma * sublayer(norm(x))
        elif placement == "sandwich":
            branch = gamma * getattr(block, f"{name}_post_norm")(sublayer(norm(x)))
        elif placement == "inside":
            branch = gamma * norm(sublayer(x))
        else:
            branch = gamma * sublayer(x)
        if block.parallel:
            branches.append(branch)
        else:
            x = norm(x + branch) if placement == "post" else x + branch
    return start + sum(branches) if block.parallel else x


@pytest.mark.parametrize(
    ("placement", "parallel"),
    [
        *[("pre", False), ("post", False), ("sandwich", False), ("inside", False)],
        *[("pre", True), ("sandwich", True), ("inside", True)],
    ],
)
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize(("norm", "scale"), [("layer", None), ("rms", None), ("rms", 0.1)])
def test_norms_and_residual_connections_equal_the_formulas(
    placement: str, parallel: bool, cross: bool, norm: str, scale: float | None
) -> None:
    given = config(norm_placement=placement, norm=norm, parallel=parallel, layer_scale=scale)
    stack = Stack(given, cross_attention=cross).double()
    for parameter in stack.parameters():
        nn.init.normal_(parameter)
    x, memory = states(2, 4), states(2, 5) if cross else None
    expected = x
    for block in stack.blocks:
        expected = by_hand(block, expected, memory, placement, scale is not None)
    if placement != "post":
        assert not isinstance(stack.norm, nn.Identity)
        expected = stack.norm(expected)
    assert_same(stack(x, memory=memory), expected)


def test_layer_scale_starts_with_the_given_value() -> None:
    block = Block(config(layer_scale=0.25), cross_attention=True)
    found = {name: p for name, p in block.named_parameters() if name.endswith("gamma")}
    assert set(found) == {"attn_gamma", "cross_attn_gamma", "ff_gamma"}
    assert all(torch.equal(p, torch.full((12,), 0.25)) for p in found.values())
    assert not [name for name, _ in Block(config()).named_parameters() if "gamma" in name]


def test_stack_without_bias_has_no_bias_parameter() -> None:
    stack = Stack(config(bias=False, norm_placement="pre"), cross_attention=True)
    assert not [key for key, _ in stack.named_parameters() if "bias" in key]


def test_heads_have_the_given_widths() -> None:
    block = Block(config(d_model=12, n_heads=5, d_head=3, d_value=7)).double()
    assert block.attn.q.weight.shape == block.attn.k.weight.shape == (15, 12)
    assert block.attn.v.weight.shape == (35, 12)
    assert block.attn.out.weight.shape == (12, 35)
    assert block(states(2, 4), LoweredMask()).shape == (2, 4, 12)


def test_score_bias_applies_to_every_block() -> None:
    stack, x = Stack(config()).double(), states(2, 4)
    only_itself = torch.full((4, 4), -1e9, dtype=torch.float64).fill_diagonal_(0)
    alone = torch.stack([stack(x[:, i : i + 1])[:, 0] for i in range(4)], dim=1)
    for name in ("naive", "sdpa", "flex"):
        with backend(name):
            assert_same(stack(x, bias=only_itself), alone)


def test_drop_path_increases_with_depth_and_preserves_the_mean() -> None:
    stack = Stack(config(drop_path=0.4)).double()
    assert isinstance(stack.blocks[0].drop_path, nn.Identity)
    assert [float(block.drop_path.keep_prob) for block in stack.blocks[1:]] == [0.8, 0.6]
    drop_path, y = stack.blocks[2].drop_path, states(1, 1).expand(20000, 1, -1)
    dropped = drop_path(y)
    skipped = (dropped == 0).all(-1).squeeze()
    assert skipped.double().mean().item() == pytest.approx(0.4, abs=0.02)
    assert_same(dropped[~skipped], y[~skipped] / 0.6)
    assert torch.equal(drop_path.eval()(y), y)


def test_drop_path_rate_is_exact_in_half_precision() -> None:
    """Lightning builds and runs a bf16-true model with bf16 as the default dtype."""
    drop_path = DropPath(0.003).bfloat16()
    y = torch.ones(100_000, 1, 1)
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.bfloat16)
        skipped = (drop_path(y) == 0).double().mean().item()
    finally:
        torch.set_default_dtype(before)
    assert skipped == pytest.approx(0.003, rel=0.2)


@pytest.mark.parametrize("dropout", ["dropout", "attn_dropout", "ff_dropout", "drop_path"])
def test_dropout_is_off_in_evaluation(dropout: str) -> None:
    stack, x = Stack(config(**{dropout: 0.5})).double(), states(2, 4)
    assert not torch.equal(stack(x), stack(x))
    stack.eval()
    assert torch.equal(stack(x), stack(x))


def test_flex_refuses_attention_dropout() -> None:
    stack, x = Stack(config(attn_dropout=0.5)).double().train(), states(2, 4)
    for mask in (Mask(), Mask(window=2)):
        stack.train()
        with backend("flex"), pytest.raises(InputError, match="attention_backend must not be flex"):
            stack(x, mask)
        stack.eval()
        with backend("flex"):
            y = stack(x, mask)
        with backend("naive"):
            assert_same(y, stack(x, mask))
