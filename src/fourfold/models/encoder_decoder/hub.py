"""Marian, Pegasus and BART: config fields, tensor names and channel order of transformers.

`prepare_export` converts sinusoidal positions to Marian's order of channels.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch

from fourfold.hub.architecture import Architecture, Json, activation_field, field
from fourfold.hub.keymap import OFFSET_2, SQUEEZE_0, Entry, Extra, KeyMap, Rule
from fourfold.layers.base_model import Model
from fourfold.models import EncoderDecoder, EncoderDecoderConfig

_CROSS_ATTN = "decoder.blocks.{i}.cross_attn"
_HF_CROSS_ATTN = "model.decoder.layers.{i}.encoder_attn"


def layer_rules(block: str, layer: str, attn_norm: str, ff: str, ff_norm: str) -> tuple[Entry, ...]:
    """Return the `KeyMap` entries of the blocks of a stack; Marian and CLIP share most names.

    Args:
        block: Prefix of the native names of a block.
        layer: Prefix of the names of a layer in transformers.
        attn_norm: Name in transformers of the norm of the self-attention.
        ff: Common part of the names of the two feed-forward matrices in transformers.
        ff_norm: Name in transformers of the norm of the feed-forward layer.
    """
    return (
        Rule(block + "attn.out.{p}", layer + "self_attn.out_proj.{p}"),
        Rule(block + "attn.{m}.{p}", layer + "self_attn.{m}_proj.{p}"),
        Rule(block + "attn_norm.{p}", layer + attn_norm + ".{p}"),
        Rule(block + "ff.up.{p}", layer + ff + "1.{p}"),
        Rule(block + "ff.down.{p}", layer + ff + "2.{p}"),
        Rule(block + "ff_norm.{p}", layer + ff_norm + ".{p}"),
    )


def _keymap(*entries: Entry) -> KeyMap:
    """Return a KeyMap with the rules that Marian, Pegasus and BART share, followed by `entries`."""
    return KeyMap(
        Rule("src_embed.tokens.weight", "model.shared.weight"),
        *layer_rules(
            "{stack}.blocks.{i}.",
            "model.{stack}.layers.{i}.",
            attn_norm="self_attn_layer_norm",
            ff="fc",
            ff_norm="final_layer_norm",
        ),
        Rule(_CROSS_ATTN + ".out.{p}", _HF_CROSS_ATTN + ".out_proj.{p}"),
        Rule(_CROSS_ATTN + ".{m}.{p}", _HF_CROSS_ATTN + ".{m}_proj.{p}"),
        Rule(_CROSS_ATTN + "_norm.{p}", _HF_CROSS_ATTN + "_layer_norm.{p}"),
        Rule("head.bias", "final_logits_bias", SQUEEZE_0),
        *entries,
        Extra("model.{stack}.embed_tokens.weight", tied_to="model.shared.weight"),
        Extra("lm_head.weight", tied_to="model.shared.weight"),
        Extra("model.{stack}.embed_positions.weight", is_kept=True),
    )


def _output_bias(names: Collection[str], config: Json) -> dict[str, Any]:
    return {"output_bias": "final_logits_bias" in names}


def _infer_bart(names: Collection[str], config: Json) -> dict[str, Any]:
    """Infer `output_bias`, and `decoder_start_token_id` unless it is the begin token."""
    start = config.get("decoder_start_token_id", 2)
    is_bos = start == config.get("bos_token_id", 0)
    return _output_bias(names, config) | {"decoder_start_token_id": None if is_bos else start}


def _token_ids(config: EncoderDecoderConfig) -> dict[str, Any]:
    """Return special token ids for config.json, as in tokenizers that fourfold trains."""
    # Without these entries, transformers would use default ids, which most vocabularies do not
    # contain, and would end each text with its default `forced_eos_token_id`, here padding or the
    # beginning-of-text token.
    start = config.decoder_start_token_id
    return {
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 1 if start is None else start,
        "forced_eos_token_id": None,
    }


BART = Architecture(
    model_type="bart",
    hf_class="BartForConditionalGeneration",
    model_class=EncoderDecoder,
    config_class=EncoderDecoderConfig,
    fields=(
        field("vocab_size", "vocab_size", default=58101),
        field("d_model", "d_model", default=1024),
        field("n_layers", "encoder_layers", default=12),
        field("n_decoder_layers", "decoder_layers", default=12),
        field("n_heads", "encoder_attention_heads", default=16),
        field("n_decoder_heads", "decoder_attention_heads", default=16),
        field("d_ff", "encoder_ffn_dim", default=4096),
        field("decoder_d_ff", "decoder_ffn_dim", default=4096),
        activation_field("activation_function", default="gelu"),
        field("dropout", "dropout", default=0.1),
        field("attn_dropout", "attention_dropout", default=0.0),
        field("ff_dropout", "activation_dropout", default=0.0),
        field("max_len", "max_position_embeddings", default=1024),
        field("embed_scale", "scale_embedding", default=False),
    ),
    implied={
        "tie_embeddings": "all",
        "norm_eps": 1e-5,
        "norm_placement": "post",
        "positions": "learned",
        "embed_norm": True,
    },
    required={"tie_word_embeddings": True},
    infer=_infer_bart,
    base_model_prefix="model.",
    extra_config=_token_ids,
    keymap=_keymap(
        Rule("src_embed.positions.weight", "model.encoder.embed_positions.weight", OFFSET_2),
        Rule("tgt_embed.positions.weight", "model.decoder.embed_positions.weight", OFFSET_2),
        Rule("src_embed.norm.{p}", "model.encoder.layernorm_embedding.{p}"),
        Rule("tgt_embed.norm.{p}", "model.decoder.layernorm_embedding.{p}"),
    ),
)

MARIAN = replace(
    BART,
    model_type="marian",
    hf_class="MarianMTModel",
    fields=(
        field("vocab_size", "vocab_size", "decoder_vocab_size", default=58101),
        *BART.fields[1:],
    ),
    implied={**BART.implied, "positions": "sinusoidal_halves", "embed_norm": False},
    required={**BART.required, "share_encoder_decoder_embeddings": True},
    infer=_output_bias,
    keymap=_keymap(),
    # It drops the last token, which is padding in Marian, and starts a target with zeros.
    unread_by=("CTranslate2 4.8",),
    # Tables of sinusoidal positions, which only some versions of transformers save.
    constants={
        "model.encoder.embed_positions.weight": "src_embed.positions.weight",
        "model.decoder.embed_positions.weight": "tgt_embed.positions.weight",
    },
)

# CTranslate2 requires these entries, which are in published files.
_PEGASUS_NORMS = {"normalize_before": True, "normalize_embedding": False}
PEGASUS = replace(
    MARIAN,
    model_type="pegasus",
    hf_class="PegasusForConditionalGeneration",
    fields=BART.fields,
    implied={**MARIAN.implied, "norm_placement": "pre"},
    required=BART.required,
    extra_config=lambda config: {**_token_ids(config), **_PEGASUS_NORMS},
    keymap=_keymap(Rule("{stack}.norm.{p}", "model.{stack}.layer_norm.{p}")),
    unread_by=(),
)

ARCHITECTURES = (MARIAN, PEGASUS, BART)

# Modules whose weights read the residual stream, and modules that add to it.
_READS_RESIDUAL = ("tokens", "q", "k", "v", "up", "gate", "own")
_WRITES_RESIDUAL = ("out", "down")


def prepare_export(model: Model) -> Model:
    """Convert a model with interleaved sinusoidal positions to Marian's order of channels.

    In Vaswani et al. 2017 (section 3.5), sines and cosines alternate. In Marian and Pegasus, all
    sines precede all cosines. The channels of the residual stream are reordered in all weights that
    read or write the stream. The logits of the new model are those of the old model.

    Returns:
        A new model. `model` itself is returned if it is not an `EncoderDecoder`, or if it has other
        positions than interleaved sinusoids.
    """
    if not isinstance(model, EncoderDecoder) or model.config.positions != "sinusoidal":
        return model
    width = model.config.d_model
    order = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])
    with torch.device("cpu"):
        result = EncoderDecoder(replace(model.config, positions="sinusoidal_halves"))
    state = {name: x.cpu() for name, x in model.state_dict().items()}
    for name, x in state.items():
        *_, module, parameter = name.split(".")
        if module in _READS_RESIDUAL and parameter == "weight":
            state[name] = x[:, order]
        elif module in _WRITES_RESIDUAL or module.endswith("norm"):
            state[name] = x[order]
    result.load_state_dict(state)
    return result
