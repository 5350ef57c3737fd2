"""T5 v1.0 and v1.1: config fields and tensor names of transformers.

Both versions have the same `model_type`; entries of config.json tell them apart.
"""

from collections.abc import Collection
from typing import Any

from fourfold.errors import InputError
from fourfold.hub.architecture import Architecture, Json, field
from fourfold.hub.keymap import Entry, Extra, KeyMap, Rule
from fourfold.models import T5 as T5Model
from fourfold.models import T5Config

# `feed_forward_proj` of transformers, and the native `feed_forward` and `activation`. In
# transformers, "gelu" is exact, but "gated-gelu" is the tanh approximation.
_PROJECTIONS = {
    "relu": ("mlp", "relu"),
    "gelu": ("mlp", "gelu"),
    "gelu_new": ("mlp", "gelu_tanh"),
    "silu": ("mlp", "silu"),
    "gated-relu": ("glu", "relu"),
    "gated-gelu_python": ("glu", "gelu"),
    "gated-gelu": ("glu", "gelu_tanh"),
    "gated-silu": ("glu", "silu"),
}
_BLOCK = "{stack}.blocks.{i}."
_LAYER = "{stack}.block.{i}.layer."


def _feed_forward_rules(stack: str, index: int) -> tuple[Entry, ...]:
    """Return the entries of the feed-forward layers, which are sub-layer `index` of a block."""
    block = stack + ".blocks.{i}."
    layer = stack + ".block.{i}.layer." + f"{index}."
    up, gate, dense = block + "ff.up.weight", block + "ff.gate.weight", layer + "DenseReluDense."
    return (
        Rule((up, gate), (dense + "wi_0.weight", dense + "wi_1.weight")),
        Rule(up, dense + "wi.weight"),
        Rule(block + "ff.down.weight", dense + "wo.weight"),
        Rule(block + "ff_norm.weight", layer + "layer_norm.weight"),
    )


def _infer_version(names: Collection[str], config: Json) -> dict[str, Any]:
    """Infer the config fields that differ between versions of T5 or of transformers."""
    # Files from transformers before version 5 lack `scale_decoder_outputs`.
    tied = config.get("tie_word_embeddings") is not False
    scaled = bool(config.get("scale_decoder_outputs", tied))
    # Old checkpoints contain a copy of the embedding as the output matrix.
    has_output_matrix = "lm_head.weight" in names and not (tied and scaled)
    projection = config.get("feed_forward_proj", "relu")
    feed_forward, activation = _PROJECTIONS.get(projection, ("mlp", projection))
    return {
        "tie_embeddings": "embeddings" if has_output_matrix else "all",
        "scale_output": scaled,
        "feed_forward": feed_forward,
        "activation": activation,
    }


def _extra_config(config: T5Config) -> dict[str, Any]:
    """Return the entries of config.json that no single field of `config` determines."""
    projections = {native: name for name, native in _PROJECTIONS.items()}
    projection = projections.get((config.feed_forward, config.activation))
    if projection is None:
        raise InputError(f"{config.activation} has no name in T5's config", option="activation")
    return {
        "feed_forward_proj": projection,
        "tie_word_embeddings": config.tie_embeddings == "all",
        "scale_decoder_outputs": config.scale_output,
        # Special token ids of tokenizers that fourfold trains.
        "pad_token_id": 0,
        "eos_token_id": 2,
        "decoder_start_token_id": 1,
    }


T5 = Architecture(
    model_type="t5",
    hf_class="T5ForConditionalGeneration",
    model_class=T5Model,
    config_class=T5Config,
    fields=(
        field("vocab_size", "vocab_size", default=32128),
        field("d_model", "d_model", default=512),
        field("d_head", "d_kv", default=64),
        field("d_ff", "d_ff", default=2048),
        field("n_layers", "num_layers", default=6),
        field("n_decoder_layers", "num_decoder_layers"),
        field("n_heads", "num_heads", default=8),
        field("n_buckets", "relative_attention_num_buckets", default=32),
        field("max_distance", "relative_attention_max_distance", default=128),
        field("norm_eps", "layer_norm_epsilon", default=1e-6),
        field("dropout", "dropout_rate", default=0.1),
        field("attn_dropout", "dropout_rate", default=0.1),
        field("ff_dropout", "dropout_rate", default=0.1),
    ),
    required={"is_decoder": False, "is_encoder_decoder": True},
    infer=_infer_version,
    extra_config=_extra_config,
    keymap=KeyMap(
        Rule("src_embed.tokens.weight", "shared.weight"),
        Rule(
            "{stack}.bias.table.weight",
            "{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        ),
        Rule(_BLOCK + "attn.out.weight", _LAYER + "0.SelfAttention.o.weight"),
        Rule(_BLOCK + "attn.{m}.weight", _LAYER + "0.SelfAttention.{m}.weight"),
        Rule(_BLOCK + "attn_norm.weight", _LAYER + "0.layer_norm.weight"),
        Rule(_BLOCK + "cross_attn.out.weight", _LAYER + "1.EncDecAttention.o.weight"),
        Rule(_BLOCK + "cross_attn.{m}.weight", _LAYER + "1.EncDecAttention.{m}.weight"),
        Rule(_BLOCK + "cross_attn_norm.weight", _LAYER + "1.layer_norm.weight"),
        *_feed_forward_rules("encoder", 1),
        *_feed_forward_rules("decoder", 2),
        Rule("{stack}.norm.weight", "{stack}.final_layer_norm.weight"),
        Rule("head.own.weight", "lm_head.weight"),
        Extra("lm_head.weight", tied_to="shared.weight"),
        Extra("{stack}.embed_tokens.weight", tied_to="shared.weight"),
        # Part of the first checkpoints; cross-attention has no relative positions.
        Extra("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"),
    ),
)
ARCHITECTURES = (T5,)
