"""Weight initializations, compared with the distributions of the papers."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fourfold.errors import InputError
from fourfold.models import (
    CausalLM,
    CausalLMConfig,
    EncoderDecoder,
    EncoderDecoderConfig,
    MaskedLM,
    MaskedLMConfig,
    ViT,
    ViTConfig,
)

SHAPE: dict[str, Any] = {"d_model": 96, "n_layers": 3, "n_heads": 4, "d_ff": 256}
LANGUAGE: dict[str, Any] = {**SHAPE, "vocab_size": 200, "max_len": 64}


def assert_normal(weight: Tensor, std: float) -> None:
    """Check mean, deviation and tails of a normal distribution within 5 standard errors."""
    n = weight.numel()
    assert abs(weight.mean().item()) < 5 * std / n**0.5
    assert weight.std().item() == pytest.approx(std, rel=5 / (2 * n) ** 0.5)
    assert (weight.abs() > 2 * std).float().mean().item() == pytest.approx(0.0455, abs=0.02)


def assert_uniform(weight: Tensor, bound: float) -> None:
    n = weight.numel()
    assert weight.abs().max().item() <= bound
    assert weight.abs().max().item() > 0.99 * bound
    assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=5 / n**0.5)
    assert abs(weight.mean().item()) < 5 * bound / (3 * n) ** 0.5


def assert_norms_untouched(model: nn.Module) -> None:
    norms = [m for m in model.modules() if isinstance(m, nn.LayerNorm)]
    assert norms
    assert all((norm.weight == 1).all() and (norm.bias == 0).all() for norm in norms)


def biases(model: nn.Module, kind: type[nn.Module] = nn.Linear) -> list[Tensor]:
    return [m.bias for m in model.modules() if isinstance(m, kind) and m.bias is not None]


def glorot(layer: nn.Linear) -> float:
    return (6 / sum(layer.weight.shape)) ** 0.5


@pytest.mark.parametrize("tie_embeddings", ["all", "none"])
def test_vaswani_init(tie_embeddings: str) -> None:
    model = EncoderDecoder(EncoderDecoderConfig(**LANGUAGE, tie_embeddings=tie_embeddings))
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            assert_uniform(layer.weight, glorot(layer))
    assert_normal(model.src_embed.tokens.weight, 96**-0.5)
    assert_normal(model.tgt_embed.tokens.weight, 96**-0.5)
    assert all((bias == 0).all() for bias in biases(model))
    assert_norms_untouched(model)


def test_vaswani_init_of_learned_positions() -> None:
    model = EncoderDecoder(EncoderDecoderConfig(**LANGUAGE, positions="learned"))
    for embed in (model.src_embed, model.tgt_embed):
        assert_normal(embed.positions.weight, 96**-0.5)
    assert not torch.equal(model.src_embed.positions.weight, model.tgt_embed.positions.weight)


def test_bert_init_is_truncated_at_two_deviations() -> None:
    model = MaskedLM(MaskedLMConfig(**LANGUAGE, next_sentence=True))
    matrices = {key: p for key, p in model.named_parameters() if p.dim() == 2}
    assert len(matrices) == 3 * 6 + 6  # blocks; three embeddings, transform, pooler, classifier
    for key, weight in matrices.items():
        assert weight.abs().max().item() <= 0.04, key
        # What is left of a normal distribution cut at two deviations has 0.88 of its deviation.
        tolerance = max(0.02, 4 / weight.numel() ** 0.5)
        assert weight.std().item() == pytest.approx(0.8796 * 0.02, rel=tolerance), key
    assert all((bias == 0).all() for bias in [*biases(model), model.head.bias])
    assert_norms_untouched(model)


def test_gpt_init() -> None:
    model = CausalLM(CausalLMConfig(**LANGUAGE, init="gpt"))
    for parameter in model.parameters():
        if parameter.dim() == 2:
            assert_normal(parameter, 0.02)
    assert all((bias == 0).all() for bias in biases(model))
    assert_norms_untouched(model)


@pytest.mark.parametrize("n_layers", [1, 3])
def test_gpt2_init_scales_residual_projections(n_layers: int) -> None:
    model = CausalLM(CausalLMConfig(**{**LANGUAGE, "n_layers": n_layers}))
    assert_normal(model.embed.tokens.weight, 0.02)
    assert_normal(model.embed.positions.weight, 0.01)
    for block in model.stack.blocks:
        for layer in (block.attn.q, block.attn.k, block.attn.v, block.ff.up):
            assert_normal(layer.weight, 0.02)
        for layer in (block.attn.out, block.ff.down):
            assert_normal(layer.weight, 0.02 / (2 * n_layers) ** 0.5)
    assert all((bias == 0).all() for bias in biases(model))
    assert_norms_untouched(model)


def test_vit_init() -> None:
    model = ViT(
        ViTConfig(
            **SHAPE, image_size=32, patch_size=4, n_channels=3, n_classes=10, representation_size=80
        )
    )
    for block in model.stack.blocks:
        attn, ff = block.attn, block.ff
        for layer in (attn.q, attn.k, attn.v, attn.out, ff.up, ff.down):
            assert_uniform(layer.weight, glorot(layer))
        assert all((layer.bias == 0).all() for layer in (attn.q, attn.k, attn.v, attn.out))
        assert_normal(torch.cat([ff.up.bias, ff.down.bias]), 1e-6)
    assert_normal(model.embed.patches.weight, (3 * 4 * 4) ** -0.5)
    assert_normal(model.embed.positions.weight, 0.02)
    assert (model.embed.patches.bias == 0).all()
    assert (model.embed.prefix == 0).all()
    assert_uniform(model.representation.weight, glorot(model.representation))
    assert (model.heads[0].weight == 0).all()
    assert (model.heads[0].bias == 0).all()
    assert_norms_untouched(model)


def test_deit_init() -> None:
    config = ViTConfig(**SHAPE, image_size=32, patch_size=4, distillation=True, init="bert")
    model = ViT(config)
    for weight in (model.embed.prefix, model.embed.positions.weight, model.heads[1].weight):
        assert 0 < weight.abs().max().item() <= 0.04


def test_an_unknown_init_is_rejected() -> None:
    with pytest.raises(InputError, match=r"init must be one of vaswani, bert.* got 'kaiming'"):
        CausalLM(CausalLMConfig(**LANGUAGE, init="kaiming"))
