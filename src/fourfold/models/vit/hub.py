"""ViT, DeiT, DINOv2 and DINOv3: config fields and tensor names of transformers."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch

from fourfold.errors import InputError
from fourfold.hub import keymap
from fourfold.hub.architecture import (
    Architecture,
    Field,
    Json,
    activation_field,
    field,
    image_fields,
    size_fields,
)
from fourfold.hub.keymap import Extra, KeyMap, Rule, TensorOp
from fourfold.hub.preprocessing import infer_n_classes, label_entries
from fourfold.models import ViT, ViTConfig
from fourfold.models.masked_lm.hub import attention_rules, encoder_fields, encoder_rules


def _keymap(prefix: str, prefix_tokens: tuple[str, ...], heads: tuple[str, ...]) -> KeyMap:
    """Return the key map of a ViT or DeiT; all arguments are names in transformers.

    There is one head for each prefix token, or one head named `classifier`.
    """
    embeddings = prefix + "embeddings."
    return KeyMap(
        Rule("embed.prefix", tuple(embeddings + t for t in prefix_tokens), keymap.PREFIX_TOKENS),
        Rule("embed.positions.weight", embeddings + "position_embeddings", keymap.SQUEEZE_0),
        Rule("embed.patches.{p}", embeddings + "patch_embeddings.projection.{p}"),
        *encoder_rules(prefix, "attention.attention", "layernorm_before", "layernorm_after"),
        Rule("stack.norm.{p}", prefix + "layernorm.{p}"),
        Rule(
            tuple(f"heads.{n}.{{p}}" for n in range(len(heads))), tuple(h + ".{p}" for h in heads)
        ),
        Rule("heads.0.{p}", "classifier.{p}"),
        Extra(prefix + "pooler.dense.{p}", is_kept=True),
    )


_TOKENS = ("cls_token", "register_tokens")
_DEIT_HEADS = ("cls_classifier", "distillation_classifier")
VIT = Architecture(
    model_type="vit",
    hf_class="ViTForImageClassification",
    model_class=ViT,
    config_class=ViTConfig,
    fields=(
        *encoder_fields(dropout=0.0),
        *image_fields(16),
        # None follows the native field `bias`, which is true.
        Field("qkv_bias", ("qkv_bias",), True, lambda value: None if value is True else value),
    ),
    implied={"norm_placement": "pre", "positions": "learned", "pool": "cls", "distillation": False},
    infer=infer_n_classes,
    base_model_prefix="vit.",
    keymap=_keymap("vit.", ("cls_token",), ("classifier",)),
    extra_config=label_entries,
    model_options=lambda names: {
        "n_heads": sum(f"{head}.weight" in names for head in ("classifier", *_DEIT_HEADS))
    },
)


def _read_deit(names: Collection[str], config: Json) -> dict[str, Any]:
    """Return the native values of DeiT: without a teacher, no head reads the second token."""
    alone = "classifier.weight" in names
    return {"distillation": not alone, "n_registers": int(alone), **infer_n_classes(names, config)}


DEIT = replace(
    VIT,
    model_type="deit",
    hf_class=lambda config: "DeiTForImageClassification" + "WithTeacher" * config.distillation,
    infer=_read_deit,
    base_model_prefix="deit.",
    keymap=_keymap("deit.", ("cls_token", "distillation_token"), _DEIT_HEADS),
)

# The matrices `up` and `gate` of a gated layer, one above the other, and `down`.
_GATED = TensorOp(
    lambda both, down: (*both.chunk(2), down), lambda up, gate, down: (torch.cat([up, gate]), down)
)


_LAYER, _BLOCK = "layer.{i}.", "stack.blocks.{i}."
_UP, _GATE, _DOWN = (_BLOCK + f"ff.{name}.{{p}}" for name in ("up", "gate", "down"))


def _scale_rules(layer: str) -> tuple[Rule, ...]:
    """Return the rules of the norms and of LayerScale of DINOv2 and DINOv3."""
    return (
        Rule(_BLOCK + "attn_norm.{p}", layer + "norm1.{p}"),
        Rule(_BLOCK + "attn_gamma", layer + "layer_scale1.lambda1"),
        Rule(_BLOCK + "ff_norm.{p}", layer + "norm2.{p}"),
        Rule(_BLOCK + "ff_gamma", layer + "layer_scale2.lambda1"),
    )


def _dinov2_keymap(prefix: str, *, registers: bool = False) -> KeyMap:
    """Return the key map of DINOv2, with or without registers after the class token."""
    embeddings, layer = prefix + "embeddings.", prefix + "encoder.layer.{i}."
    mlp = {n: layer + f"mlp.{n}.{{p}}" for n in ("fc1", "fc2", "weights_in", "weights_out")}
    tokens = tuple(embeddings + x for x in _TOKENS[: 1 + registers])
    op = keymap.CLASS_AND_REGISTERS if registers else keymap.PREFIX_TOKENS
    return KeyMap(
        Rule("embed.prefix", tokens, op),
        Rule("embed.positions.weight", embeddings + "position_embeddings", keymap.SQUEEZE_0),
        Rule("embed.patches.{p}", embeddings + "patch_embeddings.projection.{p}"),
        *attention_rules(layer + "attention.attention."),
        Rule(_BLOCK + "attn.out.{p}", layer + "attention.output.dense.{p}"),
        *_scale_rules(layer),
        Rule((_UP, _GATE, _DOWN), (mlp["weights_in"], mlp["weights_out"]), _GATED),
        Rule((_UP, _DOWN), (mlp["fc1"], mlp["fc2"])),
        Rule("stack.norm.{p}", prefix + "layernorm.{p}"),
        Rule("heads.0.{p}", "classifier.{p}"),
        Extra(embeddings + "mask_token", is_kept=True),
    )


def _gated_width(d_model: int, ratio: int) -> int:
    """Return the width of DINOv2's gated layer, 2 / 3 of the other width in multiples of 8."""
    return (int(d_model * ratio * 2 / 3) + 7) // 8 * 8


def _read_dinov2(names: Collection[str], config: Json) -> dict[str, Any]:
    """Return the native values of DINOv2 that several keys of config.json determine."""
    d_model, ratio = config.get("hidden_size", 768), config.get("mlp_ratio", 4)
    layer: dict[str, Any] = {"feed_forward": "mlp", "d_ff": int(d_model * ratio)}
    if config.get("use_swiglu_ffn", False):
        layer = {"feed_forward": "glu", "d_ff": _gated_width(d_model, ratio), "activation": "silu"}
    return layer | infer_n_classes(names, config)


def _write_dinov2(config: ViTConfig) -> dict[str, Any]:
    """Return the entries of config.json that no single field determines."""
    gated = config.feed_forward == "glu"
    width = config.d_model
    widths = {n: _gated_width(width, n) if gated else n * width for n in range(1, 65)}
    ratio = next((n for n, d_ff in widths.items() if d_ff == config.d_ff), None)
    if ratio is None:
        message = f"must be the width of an integer mlp_ratio of DINOv2, got {config.d_ff}"
        raise InputError(message, option="d_ff")
    return {**label_entries(config), "mlp_ratio": ratio, "use_swiglu_ffn": gated}


DINOV2 = replace(
    VIT,
    model_type="dinov2",
    hf_class="Dinov2ForImageClassification",
    fields=(
        *(entry for entry in VIT.fields if entry.name not in ("d_ff", "norm_eps")),
        field("norm_eps", "layer_norm_eps", default=1e-6),
        field("layer_scale", "layerscale_value", default=1.0),
        field("drop_path", "drop_path_rate", default=0.0),
    ),
    implied={**VIT.implied, "pool": "cls_mean"},
    infer=_read_dinov2,
    extra_config=_write_dinov2,
    base_model_prefix="dinov2.",
    keymap=_dinov2_keymap("dinov2."),
)
DINOV2_REGISTERS = replace(
    DINOV2,
    model_type="dinov2_with_registers",
    hf_class="Dinov2WithRegistersForImageClassification",
    fields=(*DINOV2.fields, field("n_registers", "num_register_tokens", default=4)),
    implied={**DINOV2.implied, "prefix_positions": "class"},
    base_model_prefix="dinov2_with_registers.",
    keymap=_dinov2_keymap("dinov2_with_registers.", registers=True),
)


def _read_dinov3(names: Collection[str], config: Json) -> dict[str, Any]:
    """Return the native values of DINOv3 that several keys of config.json determine."""
    query, key, value = (config.get(f"{x}_bias", x != "key") for x in ("query", "key", "value"))
    if query != value or (key and not query):
        message = f"must equal value_bias, and be true if key_bias is, got {query}"
        raise InputError(message, option="query_bias")
    gated = bool(config.get("use_gated_mlp", False))
    return {
        "qkv_bias": None if query else False,
        "key_bias": bool(key) or not query,
        "feed_forward": "glu" if gated else "mlp",
        **infer_n_classes(names, config),
    }


def _write_dinov3(config: ViTConfig) -> dict[str, Any]:
    """Return the entries of config.json that several native fields determine."""
    has_bias = config.qkv_bias is not False
    return {
        **label_entries(config),
        **dict.fromkeys(("query_bias", "value_bias"), has_bias),
        "key_bias": has_bias and config.key_bias,
        "use_gated_mlp": config.feed_forward == "glu",
    }


DINOV3 = replace(
    VIT,
    model_type="dinov3_vit",
    hf_class="DINOv3ViTModel",  # transformers has no classifier
    fields=(
        *size_fields(384, 12, 6, 1536),
        activation_field("hidden_act", default="gelu"),
        field("attn_dropout", "attention_dropout", default=0.0),
        field("norm_eps", "layer_norm_eps", default=1e-5),
        field("rope_theta", "rope_theta", default=100.0),
        *image_fields(16),
        field("layer_scale", "layerscale_value", default=1.0),
        field("n_registers", "num_register_tokens", default=0),
    ),
    implied={**VIT.implied, "positions": "rotary2d", "pool": "cls_mean", "dropout": 0.0},
    required={"proj_bias": True, "mlp_bias": True, "drop_path_rate": 0.0},
    infer=_read_dinov3,
    extra_config=_write_dinov3,
    base_model_prefix="",
    keymap=KeyMap(
        Rule("embed.prefix", tuple("embeddings." + x for x in _TOKENS), keymap.CLASS_AND_REGISTERS),
        Rule("embed.patches.{p}", "embeddings.patch_embeddings.{p}"),
        *(Rule(_BLOCK + f"attn.{m}.{{p}}", _LAYER + f"attention.{m}_proj.{{p}}") for m in "qkv"),
        Rule(_BLOCK + "attn.out.{p}", _LAYER + "attention.o_proj.{p}"),
        *_scale_rules(_LAYER),
        # transformers applies the activation to `gate_proj`, if there is one.
        Rule((_UP, _GATE), (_LAYER + "mlp.gate_proj.{p}", _LAYER + "mlp.up_proj.{p}")),
        Rule(_UP, _LAYER + "mlp.up_proj.{p}"),
        Rule(_DOWN, _LAYER + "mlp.down_proj.{p}"),
        Rule("stack.norm.{p}", "norm.{p}"),
        Extra("embeddings.mask_token", is_kept=True),
    ),
    model_options=lambda names: {"n_heads": 0},
)
ARCHITECTURES = (VIT, DEIT, DINOV2, DINOV2_REGISTERS, DINOV3)
