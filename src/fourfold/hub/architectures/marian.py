"""Marian, Pegasus and BART: config fields and tensor names of transformers.

Also converts a model with interleaved sinusoidal positions to the order that Marian requires.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fourfold.hub.architecture import Architecture, Field, Json, activation_field, field
from fourfold.hub.keymap import OFFSET_2, SQUEEZE_0, Entry, KeyMap, Rule, Tied
from fourfold.models import EncoderDecoder, EncoderDecoderConfig
from fourfold.models.base import Model


def _fields(*vocabulary_keys: str) -> tuple[Field, ...]:
    return (
        field("vocab_size", "vocab_size", *vocabulary_keys, default=58101),
        field("d_model", "d_model", default=1024),
        field("n_layers", "encoder_layers", default=12),
        field("n_decoder_layers", "decoder_layers", default=12),
        field("n_heads", "encoder_attention_heads", "decoder_attention_heads", default=16),
        field("d_ff", "encoder_ffn_dim", "decoder_ffn_dim", default=4096),
        activation_field("activation_function", "gelu"),
        field("dropout", "dropout", default=0.1),
        field("attn_dropout", "attention_dropout", default=0.0),
        field("ff_dropout", "activation_dropout", default=0.0),
        field("max_len", "max_position_embeddings", default=1024),
        field("embed_scale", "scale_embedding", default=False),
    )


def _stack_entries(name: str) -> tuple[Entry, ...]:
    block = name + ".blocks.{i}."
    layer = f"model.{name}" + ".layers.{i}."
    return (
        Rule(block + "attn.out.{p}", layer + "self_attn.out_proj.{p}"),
        Rule(block + "attn.{m}.{p}", layer + "self_attn.{m}_proj.{p}"),
        Rule(block + "attn_norm.{p}", layer + "self_attn_layer_norm.{p}"),
        Rule(block + "ff.up.{p}", layer + "fc1.{p}"),
        Rule(block + "ff.down.{p}", layer + "fc2.{p}"),
        Rule(block + "ff_norm.{p}", layer + "final_layer_norm.{p}"),
    )


_CROSS_ATTN = "decoder.blocks.{i}.cross_attn"
_HF_CROSS_ATTN = "model.decoder.layers.{i}.encoder_attn"
_COMMON: tuple[Entry, ...] = (
    Rule("src_embed.tokens.weight", "model.shared.weight"),
    *_stack_entries("encoder"),
    *_stack_entries("decoder"),
    Rule(_CROSS_ATTN + ".out.{p}", _HF_CROSS_ATTN + ".out_proj.{p}"),
    Rule(_CROSS_ATTN + ".{m}.{p}", _HF_CROSS_ATTN + ".{m}_proj.{p}"),
    Rule(_CROSS_ATTN + "_norm.{p}", _HF_CROSS_ATTN + "_layer_norm.{p}"),
    Rule("head.bias", "final_logits_bias", SQUEEZE_0),
    Tied("model.encoder.embed_tokens.weight", "model.shared.weight"),
    Tied("model.decoder.embed_tokens.weight", "model.shared.weight"),
    Tied("lm_head.weight", "model.shared.weight"),
)
# Tables of sinusoidal positions, which only some versions of transformers save.
_SINUSOIDAL_TABLES = {
    "model.encoder.embed_positions.weight": "src_embed.positions.weight",
    "model.decoder.embed_positions.weight": "tgt_embed.positions.weight",
}
_SINUSOIDAL: tuple[Entry, ...] = tuple(Rule((), name) for name in _SINUSOIDAL_TABLES)


def _output_bias(names: Collection[str], config: Json) -> dict[str, Any]:
    return {"output_bias": "final_logits_bias" in names}


def _bart_start_token(names: Collection[str], config: Json) -> dict[str, Any]:
    """Infer the first token of the decoder, which for BART is the end of a text.

    It is None if it equals the beginning-of-text token.
    """
    start = config.get("decoder_start_token_id", 2)
    bos = config.get("bos_token_id", 0)
    return {
        **_output_bias(names, config),
        "decoder_start_token_id": None if start == bos else start,
    }


def _token_ids(config: EncoderDecoderConfig) -> dict[str, Any]:
    """Return the special token ids of tokenizers that fourfold trains.

    The defaults of transformers exceed most vocabularies. They also force a last token, which would
    be padding or the beginning-of-text token here.
    """
    return {
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 1
        if config.decoder_start_token_id is None
        else config.decoder_start_token_id,
        "forced_eos_token_id": None,
    }


_IMPLIED = {"tie_embeddings": "all", "norm_eps": 1e-5}
_IMPLIED_SINUSOIDAL = {**_IMPLIED, "positions": "sinusoidal_halves", "embed_norm": False}
_REQUIRED = {"tie_word_embeddings": True}

MARIAN = Architecture(
    model_type="marian",
    model_class=EncoderDecoder,
    config_class=EncoderDecoderConfig,
    fields=_fields("decoder_vocab_size"),
    implied={**_IMPLIED_SINUSOIDAL, "norm_placement": "post"},
    required={**_REQUIRED, "share_encoder_decoder_embeddings": True},
    infer=_output_bias,
    hf_class_for=lambda config: "MarianMTModel",
    base_model_prefix="model.",
    extra_config=_token_ids,
    keymap=KeyMap((*_COMMON, *_SINUSOIDAL)),
    constants=_SINUSOIDAL_TABLES,
)

PEGASUS = Architecture(
    model_type="pegasus",
    model_class=EncoderDecoder,
    config_class=EncoderDecoderConfig,
    fields=_fields(),
    implied={**_IMPLIED_SINUSOIDAL, "norm_placement": "pre"},
    required=_REQUIRED,
    infer=_output_bias,
    hf_class_for=lambda config: "PegasusForConditionalGeneration",
    base_model_prefix="model.",
    extra_config=_token_ids,
    keymap=KeyMap(
        (
            *_COMMON,
            Rule("encoder.norm.{p}", "model.encoder.layer_norm.{p}"),
            Rule("decoder.norm.{p}", "model.decoder.layer_norm.{p}"),
            *_SINUSOIDAL,
        )
    ),
    constants=_SINUSOIDAL_TABLES,
)

BART = Architecture(
    model_type="bart",
    model_class=EncoderDecoder,
    config_class=EncoderDecoderConfig,
    fields=_fields(),
    implied={**_IMPLIED, "norm_placement": "post", "positions": "learned", "embed_norm": True},
    required=_REQUIRED,
    infer=_bart_start_token,
    hf_class_for=lambda config: "BartForConditionalGeneration",
    base_model_prefix="model.",
    extra_config=_token_ids,
    keymap=KeyMap(
        (
            *_COMMON,
            Rule("src_embed.positions.weight", "model.encoder.embed_positions.weight", OFFSET_2),
            Rule("tgt_embed.positions.weight", "model.decoder.embed_positions.weight", OFFSET_2),
            Rule("src_embed.norm.{p}", "model.encoder.layernorm_embedding.{p}"),
            Rule("tgt_embed.norm.{p}", "model.decoder.layernorm_embedding.{p}"),
        )
    ),
)

# Modules whose weights read the residual stream, and modules that add to it.
_READS_RESIDUAL = ("tokens", "q", "k", "v", "up", "gate", "own")
_WRITES_RESIDUAL = ("out", "down")


def deinterleave_positions(model: Model) -> Model:
    """Convert interleaved sinusoidal positions (Vaswani et al. 2017, 3.5) to Marian's order.

    Marian and Pegasus concatenate all sines and all cosines. Only the position table depends on
    the order of the channels of the residual stream, so permuting every weight that reads or writes
    the stream leaves the logits unchanged.

    Returns:
        A new model; `model` itself if it has other positions or belongs to another family.
    """
    if not isinstance(model, EncoderDecoder) or model.config.positions != "sinusoidal":
        return model
    width = model.config.d_model
    order = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])
    result = EncoderDecoder(replace(model.config, positions="sinusoidal_halves"))
    state = model.state_dict()
    result.load_state_dict({name: _permute(name, x, order) for name, x in state.items()})
    return result


def _permute(name: str, x: Tensor, order: Tensor) -> Tensor:
    *_, module, parameter = name.split(".")
    if module in _READS_RESIDUAL and parameter == "weight":
        return x[:, order.to(x.device)]
    if module in _WRITES_RESIDUAL or module.endswith("norm"):
        return x[order.to(x.device)]
    return x
