"""Parameters and FLOPs: closed formulas, figures computed from the papers, and invalid lengths."""

from typing import Any

import pytest
import torch

from fourfold.analysis.flops import CostBreakdown, forward_flops, parameters
from fourfold.core.config import TransformerConfig
from fourfold.errors import InputError
from fourfold.models import (
    CausalLM,
    CausalLMConfig,
    CompositeEncoderDecoder,
    EncoderDecoder,
    EncoderDecoderConfig,
    ImageToTextConfig,
    MaskedLM,
    MaskedLMConfig,
    Model,
    SequenceClassifier,
    SequenceClassifierConfig,
    TextToTextConfig,
    TokenClassifier,
    TokenClassifierConfig,
    ViT,
    ViTConfig,
    create,
)

SMALL: dict[str, Any] = {"d_model": 32, "n_layers": 2, "n_heads": 4, "d_ff": 48}
TEXT: dict[str, Any] = {**SMALL, "vocab_size": 50, "max_len": 40}
LARGE: dict[str, Any] = {"d_model": 1024, "n_layers": 24, "n_heads": 16, "d_ff": 4096}


def on_meta(model_class: Any, config: TransformerConfig) -> Model:
    with torch.device("meta"):
        return model_class(config)  # type: ignore[no-any-return]


def giga_macs(flops: int) -> float:
    return round(flops / 2e9, 3)


def attention(d_model: int, n_heads: int, d_qk: int, d_v: int, queries: int, keys: int) -> int:
    """FLOPs of four projections, scores and weighted sum."""
    inner = n_heads * (d_qk + d_v)
    return 2 * (d_model * inner * (queries + keys) + inner * queries * keys)


@pytest.mark.parametrize(
    ("changes", "d_qk", "d_v", "matrices"),
    [
        ({}, 8, 8, 2),
        ({"d_head": 5}, 5, 5, 2),
        ({"d_head": 5, "d_value": 7}, 5, 7, 2),
        ({"feed_forward": "glu"}, 8, 8, 3),
    ],
)
def test_flops_of_text_models_follow_the_formula(
    changes: dict[str, Any], d_qk: int, d_v: int, matrices: int
) -> None:
    def layer(length: int, memory: int = 0) -> int:
        flops = attention(32, 4, d_qk, d_v, length, length) + matrices * 2 * length * 32 * 48
        return flops + (attention(32, 4, d_qk, d_v, length, memory) if memory else 0)

    causal = forward_flops(on_meta(CausalLM, CausalLMConfig(**TEXT, **changes)), 13)
    assert causal == CostBreakdown(0, 2 * layer(13), 2 * 13 * 32 * 50)
    masked = forward_flops(on_meta(MaskedLM, MaskedLMConfig(**TEXT, **changes)), 13)
    assert masked == CostBreakdown(0, 2 * layer(13), 2 * 13 * 32 * (32 + 50))
    config = EncoderDecoderConfig(**TEXT, n_decoder_layers=3, **changes)
    pair = forward_flops(on_meta(EncoderDecoder, config), 13, source=9)
    assert pair == CostBreakdown(0, 2 * layer(9) + 3 * layer(13, 9), 2 * 13 * 32 * 50)


def test_flops_count_the_heads_of_keys_and_values_and_the_window_of_each_layer() -> None:
    changes = {"n_kv_heads": 2, "window": 5, "window_pattern": "SL", "rope_theta": 1e4}
    model = on_meta(CausalLM, CausalLMConfig(**TEXT, **changes))
    assert model.stack.blocks[0].attn.k.out_features == 16

    def layer(keys: int) -> int:
        projections = 2 * 13 * 32 * (32 + 16 + 16 + 32)
        return projections + 2 * 13 * keys * (32 + 32) + 2 * 2 * 13 * 32 * 48

    assert forward_flops(model, 13) == CostBreakdown(0, layer(5) + layer(13), 2 * 13 * 32 * 50)


def test_flops_of_task_heads_follow_the_formula() -> None:
    pooled = on_meta(SequenceClassifier, SequenceClassifierConfig(**TEXT, n_classes=3))
    assert forward_flops(pooled, 13).head == 2 * 32 * (32 + 3)
    config = TokenClassifierConfig(
        **TEXT,
        n_classes=5,
        feature_layers=(0, 1),
        feature_mix="concat",
        lstm_width=6,
        lstm_layers=2,
    )
    gates = 13 * 2 * 4 * 6 * ((64 + 6) + (12 + 6))  # two directions of four gates in two layers
    tagger = on_meta(TokenClassifier, config)
    assert forward_flops(tagger, 13).head == 2 * (gates + 13 * 12 * 5)


@pytest.mark.parametrize(
    ("changes", "n_tokens", "head"),
    [
        ({}, 26, 32 * 7),
        ({"distillation": True}, 27, 2 * 32 * 7),
        ({"pool": "mean"}, 25, 32 * 7),
        ({"representation_size": 20}, 26, 32 * 20 + 20 * 7),
    ],
)
def test_flops_of_a_vit_follow_the_formula(
    changes: dict[str, Any], n_tokens: int, head: int
) -> None:
    config = ViTConfig(**SMALL, image_size=20, patch_size=4, n_classes=7, **changes)
    flops = forward_flops(on_meta(ViT, config))
    block = attention(32, 4, 8, 8, n_tokens, n_tokens) + 2 * 2 * n_tokens * 32 * 48
    assert flops == CostBreakdown(2 * 25 * 48 * 32, 2 * block, 2 * head)


@pytest.mark.parametrize("width", [32, 40])
def test_flops_of_a_composite_are_those_of_encoder_map_and_decoder(width: int) -> None:
    shape: dict[str, Any] = {"d_model": width, "n_layers": 3, "n_heads": 2, "d_ff": 20}
    encoders: list[Any] = [
        MaskedLMConfig(**shape, vocab_size=50),
        ViTConfig(**shape, image_size=20, patch_size=4),
    ]
    causal = forward_flops(on_meta(CausalLM, CausalLMConfig(**TEXT)), 13)
    for config, encoder, n_source in (
        (TextToTextConfig(**TEXT, encoder=encoders[0]), on_meta(MaskedLM, encoders[0]), 9),
        (ImageToTextConfig(**TEXT, encoder=encoders[1]), on_meta(ViT, encoders[1]), 26),
    ):
        is_image = isinstance(encoder, ViT)
        source = None if is_image else n_source
        flops = forward_flops(on_meta(CompositeEncoderDecoder, config), 13, source=source)
        encoded = forward_flops(encoder, source)
        memory_map = 2 * n_source * width * 32 if width != 32 else 0
        cross = 2 * attention(32, 4, 8, 8, 13, n_source)
        assert flops.embeddings == encoded.embeddings
        assert flops.blocks == encoded.blocks + causal.blocks + cross
        assert flops.head == causal.head + memory_map


@pytest.mark.parametrize(
    ("name", "length", "expected"),
    [
        ("bert-base-uncased", 128, 11.174),
        ("bert-base-uncased", 512, 48.318),
        ("bert-large-uncased", 128, 39.460),
        ("bert-large-uncased", 512, 167.504),
    ],
)
def test_flops_of_the_blocks_of_bert(name: str, length: int, expected: float) -> None:
    with torch.device("meta"):
        assert giga_macs(forward_flops(create(name), length).blocks) == expected


@pytest.mark.parametrize(
    ("name", "overrides", "expected"),
    [
        ("gpt2", {}, 145.824),
        ("gpt2-medium", {}, 413.476),
        ("gpt2-large", {}, 887.285),
        ("gpt2-xl", {}, 1753.352),
        ("openai-gpt", {}, 64.235),
        ("vit_base_patch16_224", {}, 17.564),
        ("vit_base_patch16_224", {"image_size": 384}, 55.484),
        ("vit_base_patch32_224", {}, 4.409),
        ("vit_large_patch16_224", {}, 61.555),
        ("vit_large_patch32_224", {}, 15.378),
        ("vit_huge_patch14_224", {}, 167.295),
        ("vit_tiny_patch16_224", {}, 1.254),
        ("vit_small_patch16_224", {}, 4.599),
        ("resnet18", {}, 1.814),
        ("resnet50", {}, 4.089),
    ],
)
def test_flops_of_published_models(name: str, overrides: dict[str, int], expected: float) -> None:
    with torch.device("meta"):
        assert giga_macs(forward_flops(create(name, **overrides)).total) == expected


def test_flops_of_a_translation_pair_of_25_tokens() -> None:
    """The figures of reproduce/data/vaswani2017.yaml, which have four decimals."""
    with torch.device("meta"):
        flops = {
            name: forward_flops(create(name), 25).total
            for name in ("transformer_base", "transformer_big")
        }
    assert round(flops["transformer_base"] / 2e9, 4) == 1.5861
    assert round(flops["transformer_big"] / 2e9, 4) == 5.3743


def test_head_fraction_scales_the_head_only() -> None:
    model = on_meta(MaskedLM, MaskedLMConfig(**TEXT))
    everywhere = forward_flops(model, 20)
    masked = forward_flops(model, 20, head_fraction=0.15)
    assert masked.blocks == everywhere.blocks
    assert masked.head == pytest.approx(0.15 * everywhere.head)


def test_counting_leaves_a_model_on_the_cpu_unchanged() -> None:
    model = CausalLM(CausalLMConfig(**TEXT))
    weights = {name: x.clone() for name, x in model.state_dict().items()}
    assert forward_flops(model, 13) == forward_flops(on_meta(CausalLM, model.config), 13)
    for name, x in model.state_dict().items():
        assert x.device.type == "cpu"
        assert torch.equal(x, weights[name])
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize(
    ("model_class", "config"),
    [
        (CausalLM, CausalLMConfig(**TEXT, tie_embeddings=False)),
        (MaskedLM, MaskedLMConfig(**TEXT, next_sentence=True)),
        (EncoderDecoder, EncoderDecoderConfig(**TEXT)),
        (ViT, ViTConfig(**SMALL, image_size=20, patch_size=4, distillation=True)),
    ],
)
def test_parameter_breakdown_sums_to_the_total(model_class: type, config: Any) -> None:
    model = on_meta(model_class, config)
    parts = parameters(model)
    assert parts.total == sum(p.numel() for p in model.parameters())
    assert min(parts.embeddings, parts.blocks) > 0


def test_tied_matrix_counts_in_the_embeddings() -> None:
    parts = parameters(on_meta(CausalLM, CausalLMConfig()))
    assert parts == CostBreakdown(embeddings=(50257 + 1024) * 768, blocks=85_056_000, head=0)


@pytest.mark.parametrize(("length", "message"), [(41, "at most max_len .40., got 41"), (0, "at")])
def test_invalid_length_raises(length: int, message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        forward_flops(on_meta(CausalLM, CausalLMConfig(**TEXT)), length)
    assert raised.value.option == "length"
