"""Llama, Mistral, Qwen2, Qwen3 and OLMo 2: config fields and tensor names of transformers."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from fourfold.hub import rotary
from fourfold.hub.architecture import (
    Architecture,
    Field,
    Json,
    activation_field,
    field,
    size_fields,
)
from fourfold.hub.keymap import KEEP, Extra, KeyMap, Rule, TensorOp
from fourfold.models import CausalLM, CausalLMConfig

# Norms of a block, and their names in transformers, by `norm_placement`.
_NORMS = {
    "pre": {"attn_norm": "input_layernorm", "ff_norm": "post_attention_layernorm"},
    "inside": {"attn_norm": "post_attention_layernorm", "ff_norm": "post_feedforward_layernorm"},
    "sandwich": {
        "attn_norm": "input_layernorm",
        "attn_post_norm": "post_attention_layernorm",
        "ff_norm": "pre_feedforward_layernorm",
        "ff_post_norm": "post_feedforward_layernorm",
    },
}


def keymap(norm_placement: str, norm_op: TensorOp = KEEP) -> KeyMap:
    """Return the key map of a model with the tensor names of Llama.

    `norm_op` converts the weights of all norms.
    """
    layer = "model.layers.{i}."
    block = "stack.blocks.{i}."
    attention = layer + "self_attn."
    norms = {f"attn.{m}_norm": f"self_attn.{m}_norm" for m in "qk"} | _NORMS[norm_placement]
    return KeyMap(
        Rule("embed.tokens.weight", "model.embed_tokens.weight"),
        *(Rule(block + f"attn.{m}.{{p}}", attention + f"{m}_proj.{{p}}") for m in "qkv"),
        Rule(block + "attn.out.{p}", attention + "o_proj.{p}"),
        # transformers applies the activation to `gate_proj`.
        Rule(block + "ff.up.{p}", layer + "mlp.gate_proj.{p}"),
        Rule(block + "ff.gate.{p}", layer + "mlp.up_proj.{p}"),
        Rule(block + "ff.down.{p}", layer + "mlp.down_proj.{p}"),
        *(Rule(f"{block}{x}.weight", f"{layer}{y}.weight", norm_op) for x, y in norms.items()),
        Rule("stack.norm.weight", "model.norm.weight", norm_op),
        Rule("head.own.weight", "lm_head.weight"),  # if embeddings are not tied
        Extra("lm_head.weight", tied_to="model.embed_tokens.weight"),
        Extra(attention + "rotary_emb.inv_freq"),  # in files of early versions
    )


def tied_if_base(names: Collection[str], config: Json) -> dict[str, Any]:
    """Return `tie_embeddings` of a base model without a head, such as LlamaModel; else nothing.

    A base model has no output matrix, and its embeddings are read as tied.
    """
    is_base = "lm_head.weight" not in names and not any(
        "ForCausalLM" in str(name) for name in config.get("architectures") or ()
    )
    return {"tie_embeddings": True} if is_base else {}


def infer_llama(names: Collection[str], config: Json) -> dict[str, Any]:
    """Return the native values that several keys of config.json determine."""
    rope = rotary.read_rope(config, config.get("rope_parameters"), 10_000.0)
    return rope | tied_if_base(names, config)


def _read_biases(config: Json, bias: bool = False) -> dict[str, Any]:
    """Return the native values of `attention_bias`, in a model whose other matrices have `bias`."""
    attention = bool(config.get("attention_bias", False))
    found = None if attention == bias else attention
    return {"bias": bias, "qkv_bias": found, "out_bias": found}


def _write_biases(config: CausalLMConfig) -> dict[str, Any]:
    """Return the entries of config.json for rotary positions and for biases of attention."""
    has_bias = config.bias if config.qkv_bias is None else config.qkv_bias
    return {**rotary.write_rope(config), "attention_bias": has_bias}


def llama_fields(
    sizes: tuple[int, int, int, int] = (4096, 32, 32, 11008),
    *,
    kv_heads: int | None = None,
    d_head: int | None = None,
    vocab_size: int = 32000,
    max_len: int = 2048,
    norm_eps: float = 1e-6,
    tied: bool = False,
    activation: str = "hidden_act",
) -> tuple[Field, ...]:
    """Return the fields of config.json that all architectures have, with their defaults.

    Args:
        sizes: Arguments of `size_fields`.
        kv_heads: Default of `num_key_value_heads`; None means the number of heads.
        d_head: Default of `head_dim`; None means hidden_size / num_attention_heads.
        vocab_size: Default of `vocab_size`.
        max_len: Default of `max_position_embeddings`.
        norm_eps: Default of `rms_norm_eps`.
        tied: Default of `tie_word_embeddings`.
        activation: Key of the activation function.
    """
    return (
        *size_fields(*sizes),
        field("vocab_size", "vocab_size", default=vocab_size),
        field("n_kv_heads", "num_key_value_heads", default=kv_heads),
        field("d_head", "head_dim", default=d_head),
        field("max_len", "max_position_embeddings", default=max_len),
        field("norm_eps", "rms_norm_eps", default=norm_eps),
        field("attn_dropout", "attention_dropout", default=0.0),
        field("tie_embeddings", "tie_word_embeddings", default=tied),
        activation_field(activation, default="silu"),
    )


def _read_llama(names: Collection[str], config: Json) -> dict[str, Any]:
    biases = _read_biases(config, bool(config.get("mlp_bias", False)))
    return infer_llama(names, config) | biases


def _read_mistral(names: Collection[str], config: Json) -> dict[str, Any]:
    window = config.get("sliding_window", 4096)
    windows = rotary.read_windows(config, "S" * rotary.count_layers(config, 32), window)
    return infer_llama(names, config) | windows


def _read_qwen(names: Collection[str], config: Json) -> dict[str, Any]:
    """Return the native values of Qwen2 and Qwen3, whose windows may begin at a later layer."""
    n_layers, n_full = rotary.count_layers(config, 32), config.get("max_window_layers", 28)
    n_full = min(max(n_full, 0), n_layers)
    window = config.get("sliding_window", 4096) if config.get("use_sliding_window") else None
    windows = rotary.read_windows(config, "L" * n_full + "S" * (n_layers - n_full), window)
    return infer_llama(names, config) | windows


def _write_qwen(config: CausalLMConfig) -> dict[str, Any]:
    types, windowed = rotary.layer_types(config), rotary.LAYER_TYPES["S"]
    n_full = types.index(windowed) if windowed in types else len(types)
    return {
        **rotary.write_rope(config),
        "layer_types": types,
        "use_sliding_window": n_full < len(types),
        "sliding_window": config.window,
        "max_window_layers": n_full,
    }


LLAMA = Architecture(
    model_type="llama",
    hf_class="LlamaForCausalLM",
    model_class=CausalLM,
    config_class=CausalLMConfig,
    fields=llama_fields(),
    implied={
        "positions": "none",
        "norm": "rms",
        "norm_placement": "pre",
        "feed_forward": "glu",
        "bias": False,
        "dropout": 0.0,
        "embed_norm": False,
    },
    infer=_read_llama,
    extra_config=lambda config: {**_write_biases(config), "mlp_bias": config.bias},
    base_model_prefix="model.",
    keymap=keymap("pre"),
    export_if=lambda config: config.rope_theta is not None,
    unsaved=("dropout",),
)
MISTRAL = replace(
    LLAMA,
    model_type="mistral",
    hf_class="MistralForCausalLM",
    fields=llama_fields((4096, 32, 32, 14336), kv_heads=8, max_len=131072),
    infer=_read_mistral,
    extra_config=lambda config: {**rotary.write_rope(config), "sliding_window": config.window},
)
_QWEN: Any = {"sizes": (4096, 32, 32, 22016), "vocab_size": 151936, "max_len": 32768}
QWEN2 = replace(
    LLAMA,
    model_type="qwen2",
    hf_class="Qwen2ForCausalLM",
    fields=llama_fields(kv_heads=32, **_QWEN),
    implied={**LLAMA.implied, "qkv_bias": True},
    infer=_read_qwen,
    extra_config=_write_qwen,
)
QWEN3 = replace(
    LLAMA,
    model_type="qwen3",
    hf_class="Qwen3ForCausalLM",
    fields=llama_fields(kv_heads=32, d_head=128, **_QWEN),
    implied={**LLAMA.implied, "qk_norm": "head"},
    infer=lambda names, config: {**_read_qwen(names, config), **_read_biases(config)},
    extra_config=lambda config: {**_write_qwen(config), **_write_biases(config)},
)
OLMO2 = replace(
    LLAMA,
    model_type="olmo2",
    hf_class="Olmo2ForCausalLM",
    fields=llama_fields(vocab_size=50304, norm_eps=1e-5),
    implied={**LLAMA.implied, "norm_placement": "inside", "qk_norm": "all"},
    infer=lambda names, config: infer_llama(names, config) | _read_biases(config),
    extra_config=_write_biases,
    keymap=keymap("inside"),
)
ARCHITECTURES = (LLAMA, MISTRAL, QWEN2, QWEN3, OLMO2)
