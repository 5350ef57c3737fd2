"""Every option of the core changes every family, or is refused in a line that names its place."""

from dataclasses import fields, replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from fourfold.core.config import TransformerConfig
from fourfold.errors import InputError
from fourfold.models import (
    CLIP,
    T5,
    CausalLM,
    CausalLMConfig,
    CLIPConfig,
    CompositeEncoderDecoder,
    EncoderDecoder,
    EncoderDecoderConfig,
    ImageToTextConfig,
    MaskedAutoencoder,
    MaskedAutoencoderConfig,
    MaskedLM,
    MaskedLMConfig,
    SigLIP,
    SigLIPConfig,
    T5Config,
    TextToTextConfig,
    ViT,
    ViTConfig,
)

SHAPE: dict[str, Any] = {"d_model": 16, "n_layers": 2, "n_heads": 2, "d_ff": 24}
QUIET: dict[str, Any] = {"dropout": 0.0, "attn_dropout": 0.0, "ff_dropout": 0.0}
TEXT: dict[str, Any] = {**SHAPE, **QUIET, "vocab_size": 20, "max_len": 12}
IMAGE: dict[str, Any] = {"image_size": 8, "patch_size": 2, "n_channels": 1}
PICTURE: dict[str, Any] = {**SHAPE, **QUIET, **IMAGE}
TOWERS: dict[str, Any] = {
    **{f"image_{name}": size for name, size in SHAPE.items()},
    **TEXT,
    **IMAGE,
    "d_embed": 16,
}
ENCODER = MaskedLMConfig(**TEXT)
FAMILIES: dict[str, tuple[Any, TransformerConfig]] = {
    "causal": (CausalLM, CausalLMConfig(**TEXT)),
    "masked": (MaskedLM, MaskedLMConfig(**TEXT)),
    "encoder_decoder": (EncoderDecoder, EncoderDecoderConfig(**TEXT)),
    "t5": (T5, T5Config(**{**TEXT, "max_len": None})),
    "vit": (ViT, ViTConfig(**PICTURE, n_classes=5)),
    "mae": (
        MaskedAutoencoder,
        MaskedAutoencoderConfig(
            **PICTURE, decoder_d_model=16, n_decoder_layers=1, decoder_n_heads=2, decoder_d_ff=24
        ),
    ),
    "clip": (CLIP, CLIPConfig(**TOWERS)),
    "siglip": (SigLIP, SigLIPConfig(**TOWERS)),
    "text_to_text": (CompositeEncoderDecoder, TextToTextConfig(**TEXT, encoder=ENCODER)),
    "image_to_text": (
        CompositeEncoderDecoder,
        ImageToTextConfig(**TEXT, encoder=ViTConfig(**PICTURE, n_classes=5)),
    ),
}
ROTARY: dict[str, Any] = {"rope_theta": 50.0}
# Value of each option, and the options that it needs or without which it has no meaning.
OPTIONS: dict[str, tuple[Any, dict[str, Any]]] = {
    "d_model": (32, {}),
    "n_layers": (3, {}),
    "n_heads": (4, {}),
    "n_kv_heads": (1, {}),
    "d_head": (6, {}),
    "d_value": (6, {}),
    "d_ff": (40, {}),
    "activation": ("silu", {}),
    "feed_forward": ("glu", {}),
    "norm": ("rms", {"norm": "layer"}),
    "norm_placement": ("inside", {}),
    "norm_eps": (0.3, {}),
    "bias": (False, {"bias": True, "qkv_bias": True}),
    "qkv_bias": (False, {"bias": True}),
    "out_bias": (False, {"bias": True}),
    "qk_norm": ("head", {}),
    "attn_scale": (3.0, {}),
    "window": (2, {}),
    "window_pattern": ("LS", {"window": 2}),  # a class token sees all patches in the last layer
    "rope_theta": (50.0, {}),
    "rope_local_theta": (5.0, {**ROTARY, "window": 2}),
    "rope_scaling": ({"rope_type": "linear", "factor": 4.0}, ROTARY),
    "partial_rotary_factor": (0.5, ROTARY),
    "parallel": (True, {"norm_placement": "pre"}),
    "layer_scale": (0.1, {}),
    "dropout": (0.5, {}),
    "attn_dropout": (0.5, {}),
    "ff_dropout": (0.5, {}),
    "drop_path": (0.9, {}),
}


def run(family: str, config: TransformerConfig) -> Tensor:
    """Compute the output of a model in training mode, with seeded weights and random numbers."""
    model_class, _ = FAMILIES[family]
    torch.manual_seed(0)
    ids, images = torch.randint(3, 20, (4, 9)), torch.rand(4, 1, 8, 8)
    model = model_class(config).train()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5, generator=generator)
    torch.manual_seed(2)
    if family == "mae":
        return model(images, visible=torch.rand(4, 16).argsort(1)[:, :8])
    given = {
        **dict.fromkeys(("encoder_decoder", "t5", "text_to_text"), (ids, ids[:, :7])),
        **dict.fromkeys(("clip", "siglip"), (images, ids)),
        "vit": (images,),
        "image_to_text": (images, ids),
    }
    return model(*given.get(family, (ids,)))


def test_every_option_has_a_row() -> None:
    assert set(OPTIONS) == {field.name for field in fields(TransformerConfig)}


# Families that refuse rotary positions, and the options that have no meaning without them.
REFUSED = {
    ("mae", name) for name, (_, needed) in OPTIONS.items() if "rope_theta" in {name, *needed}
}


@pytest.mark.parametrize(
    ("family", "option"), [pair for pair in product(FAMILIES, OPTIONS) if pair not in REFUSED]
)
def test_option_changes_the_family(family: str, option: str) -> None:
    value, needed = OPTIONS[option]
    base = replace(FAMILIES[family][1], **needed)
    plain, changed = run(family, base), run(family, replace(base, **{option: value}))
    assert changed.shape != plain.shape or not torch.allclose(changed, plain)


@pytest.mark.parametrize(("family", "option"), sorted(REFUSED))
def test_refusal_names_where_the_option_works(family: str, option: str) -> None:
    value, needed = OPTIONS[option]
    message = r"^rope_theta must be None for .*; every other family takes it$"
    with pytest.raises(InputError, match=message):
        replace(FAMILIES[family][1], **needed, **{option: value})
