"""Stacks compared with the transformer layers of torch.nn, with equal weights in fp64."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fourfold.core.block import Stack
from fourfold.core.config import TransformerConfig
from fourfold.core.masks import Mask

D, H, FF, N = 15, 3, 22, 2

# Ours to theirs; attention's three input matrices are one there.
NORMS = {
    False: {"attn_norm": "norm1", "ff_norm": "norm2"},
    True: {"attn_norm": "norm1", "cross_attn_norm": "norm2", "ff_norm": "norm3"},
}
LAYERS = {"ff.up": "linear1", "ff.down": "linear2"}
ATTENTIONS = {"attn": "self_attn", "cross_attn": "multihead_attn"}


def theirs_of(ours: Stack, theirs: nn.Module, cross: bool) -> dict[str, tuple[str, slice]]:
    """Map each parameter to the name and the rows of its counterpart in torch.nn."""
    found = {}
    for key, _ in ours.named_parameters():
        parts = key.split(".")
        if parts[0] == "norm":
            found[key] = (key, slice(None))
            continue
        layer, name, kind = f"layers.{parts[1]}", ".".join(parts[2:-1]), parts[-1]
        head, _, leaf = name.partition(".")
        if head in ATTENTIONS:
            prefix = f"{layer}.{ATTENTIONS[head]}"
            if leaf == "out":
                found[key] = (f"{prefix}.out_proj.{kind}", slice(None))
            else:
                i = "qkv".index(leaf)
                found[key] = (f"{prefix}.in_proj_{kind}", slice(i * D, (i + 1) * D))
        else:
            found[key] = (f"{layer}.{({**NORMS[cross], **LAYERS})[name]}.{kind}", slice(None))
    assert {name for name, _ in found.values()} == {key for key, _ in theirs.named_parameters()}
    return found


def pair(cross: bool, placement: str, activation: str) -> tuple[Stack, nn.Module]:
    """Fill both models with the same random weights."""
    config = TransformerConfig(
        d_model=D,
        n_layers=N,
        n_heads=H,
        d_ff=FF,
        dropout=0.0,
        activation=activation,
        norm_placement=placement,
        norm_eps=1e-5,
    )
    ours = Stack(config, cross_attention=cross).double()
    kind: Any = nn.TransformerDecoderLayer if cross else nn.TransformerEncoderLayer
    layer = kind(
        D,
        H,
        FF,
        dropout=0.0,
        activation=activation,
        batch_first=True,
        layer_norm_eps=1e-5,
        norm_first=placement == "pre",
    )
    norm = nn.LayerNorm(D) if placement == "pre" else None
    if cross:
        theirs: nn.Module = nn.TransformerDecoder(layer, N, norm)
    else:
        theirs = nn.TransformerEncoder(layer, N, norm, enable_nested_tensor=False)
    theirs = theirs.double().train()  # not their fast path, which is another implementation
    share_noise(ours, theirs, cross)
    return ours, theirs


@torch.no_grad()
def share_noise(ours: Stack, theirs: nn.Module, cross: bool) -> None:
    for parameter in theirs.parameters():
        parameter.normal_(std=0.4)
    for key, (name, rows) in theirs_of(ours, theirs, cross).items():
        ours.get_parameter(key).copy_(theirs.get_parameter(name)[rows])


def assert_same(ours: Stack, theirs: nn.Module, cross: bool, mine: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-10)
    mine.sin().sum().backward()
    other.sin().sum().backward()
    gradients = {key: p.grad for key, p in theirs.named_parameters()}
    for key, (name, rows) in theirs_of(ours, theirs, cross).items():
        gradient = ours.get_parameter(key).grad
        torch.testing.assert_close(gradient, gradients[name][rows], rtol=1e-8, atol=1e-8, msg=key)


def padding(*lengths: int) -> Tensor:
    """Return a mask (B, T), True = real token, where T is the longest length."""
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


@pytest.mark.parametrize("placement", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_equals_torch(placement: str, activation: str) -> None:
    ours, theirs = pair(False, placement, activation)
    x, keys = torch.randn(3, 7, D, dtype=torch.float64), padding(7, 3, 5)
    mine = ours(x, Mask(keys=keys))[keys]
    assert_same(ours, theirs, False, mine, theirs(x, src_key_padding_mask=~keys)[keys])


@pytest.mark.parametrize("placement", ["post", "pre"])
@pytest.mark.parametrize("padded", [False, True])
def test_decoder_equals_torch(placement: str, padded: bool) -> None:
    ours, theirs = pair(True, placement, "relu")
    x = torch.randn(3, 5, D, dtype=torch.float64)
    memory, keys = torch.randn(3, 7, D, dtype=torch.float64), padding(7, 3, 6)
    own = padding(5, 2, 4) if padded else None
    mine = ours(x, Mask(causal=True, keys=own), memory=memory, memory_mask=Mask(keys=keys))
    future = torch.ones(5, 5, dtype=torch.bool).triu(1)
    other = theirs(
        x,
        memory,
        tgt_mask=future,
        tgt_key_padding_mask=None if own is None else ~own,
        memory_key_padding_mask=~keys,
    )
    real = padding(5, 5, 5) if own is None else own
    assert_same(ours, theirs, True, mine[real], other[real])


def test_encoder_decoder_equals_torch() -> None:
    """nn.Transformer with post-norm and relu, as in Vaswani et al. 2017."""
    (encoder, their_encoder), (decoder, their_decoder) = (
        pair(False, "post", "relu"),
        pair(True, "post", "relu"),
    )
    model = nn.Transformer(
        D,
        H,
        N,
        N,
        FF,
        dropout=0.0,
        batch_first=True,
        custom_encoder=their_encoder,
        custom_decoder=their_decoder,
    ).double()
    share_noise(encoder, their_encoder, False)  # nn.Transformer has filled them anew
    share_noise(decoder, their_decoder, True)
    src, tgt = torch.randn(2, 6, D).double(), torch.randn(2, 4, D).double()
    mine = decoder(tgt, Mask(causal=True), memory=encoder(src))
    future = torch.ones(4, 4, dtype=torch.bool).triu(1)
    other = model(src, tgt, tgt_mask=future)
    torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-10)
