"""Llama, Mistral, Qwen2, Qwen3 and OLMo 2: config fields and tensor names of transformers."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from fourfold.errors import InputError
from fourfold.hub.architecture import Architecture, Json, activation_field, field, size_fields
from fourfold.hub.keymap import KEEP, Extra, KeyMap, Rule, TensorOp
from fourfold.hub.rotary import (
    LAYER_TYPES,
    count_layers,
    layer_types,
    read_rope,
    read_windows,
    write_rope,
)
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
    return KeyMap(
        Rule("embed.tokens.weight", "model.embed_tokens.weight"),
        *(Rule(block + f"attn.{m}.{{p}}", attention + f"{m}_proj.{{p}}") for m in "qkv"),
        Rule(block + "attn.out.{p}", attention + "o_proj.{p}"),
        *(
            Rule(block + f"attn.{m}_norm.weight", attention + f"{m}_norm.weight", norm_op)
            for m in "qk"
        ),
        # transformers applies the activation to `gate_proj`.
        Rule(block + "ff.up.{p}", layer + "mlp.gate_proj.{p}"),
        Rule(block + "ff.gate.{p}", layer + "mlp.up_proj.{p}"),
        Rule(block + "ff.down.{p}", layer + "mlp.down_proj.{p}"),
        *(
            Rule(f"{block}{norm}.weight", f"{layer}{name}.weight", norm_op)
            for norm, name in _NORMS[norm_placement].items()
        ),
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
    rope = read_rope(config, config.get("rope_parameters"), 10_000.0)
    return rope | tied_if_base(names, config)


def llama_fields(*, kv_heads: int | None = None, d_head: int | None = None, **defaults: Any) -> Any:
    """Return the fields of config.json that all architectures have.

    None for `kv_heads` means the number of heads, and None for `d_head` hidden_size /
    num_attention_heads. `defaults` are those that differ from the defaults of Llama.
    """
    values = {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "vocab_size": 32000,
        "intermediate_size": 11008,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "tied": False,
        "activation": "hidden_act",
        **defaults,
    }
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    return (
        *size_fields(*(values[name] for name in sizes)),
        field("vocab_size", "vocab_size", default=values["vocab_size"]),
        field("n_kv_heads", "num_key_value_heads", default=kv_heads),
        field("d_head", "head_dim", default=d_head),
        field("max_len", "max_position_embeddings", default=values["max_position_embeddings"]),
        field("norm_eps", "rms_norm_eps", default=values["rms_norm_eps"]),
        field("attn_dropout", "attention_dropout", default=0.0),
        field("tie_embeddings", "tie_word_embeddings", default=values["tied"]),
        activation_field(values["activation"], default="silu"),
    )


def _read_llama(names: Collection[str], config: Json) -> dict[str, Any]:
    """Return the native values of Llama; biases are in all matrices or in none."""
    biases = bool(config.get("attention_bias", False)), bool(config.get("mlp_bias", False))
    if biases[0] != biases[1]:
        message = f"must equal mlp_bias ({biases[1]}), got {biases[0]}; nearest: model_type qwen2,"
        message += " with biases of queries, keys and values"
        raise InputError(message, option="attention_bias")
    return {**infer_llama(names, config), "bias": biases[0]}


def _read_mistral(names: Collection[str], config: Json) -> dict[str, Any]:
    window = config.get("sliding_window", 4096)
    return infer_llama(names, config) | read_windows(config, "S" * count_layers(config, 32), window)


def _read_qwen(names: Collection[str], config: Json) -> dict[str, Any]:
    """Return the native values of Qwen2 and Qwen3, whose windows may begin at a later layer."""
    n_layers, n_full = count_layers(config, 32), config.get("max_window_layers", 28)
    n_full = min(max(n_full, 0), n_layers)
    window = config.get("sliding_window", 4096) if config.get("use_sliding_window") else None
    windows = read_windows(config, "L" * n_full + "S" * (n_layers - n_full), window)
    return infer_llama(names, config) | windows


def _write_qwen(config: CausalLMConfig) -> dict[str, Any]:
    types = layer_types(config)
    n_full = next((i for i, kind in enumerate(types) if kind == LAYER_TYPES["S"]), len(types))
    return {
        **write_rope(config),
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
    extra_config=lambda config: {
        **write_rope(config),
        "attention_bias": config.bias,
        "mlp_bias": config.bias,
    },
    base_model_prefix="model.",
    keymap=keymap("pre"),
    export_if=lambda config: config.rope_theta is not None,
    unsaved=("dropout",),
)
MISTRAL = replace(
    LLAMA,
    model_type="mistral",
    hf_class="MistralForCausalLM",
    fields=llama_fields(kv_heads=8, intermediate_size=14336, max_position_embeddings=131072),
    infer=_read_mistral,
    extra_config=lambda config: {**write_rope(config), "sliding_window": config.window},
)
_QWEN = {"vocab_size": 151936, "intermediate_size": 22016, "max_position_embeddings": 32768}
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
    required={"attention_bias": False},
    infer=_read_qwen,
    extra_config=_write_qwen,
)
OLMO2 = replace(
    LLAMA,
    model_type="olmo2",
    hf_class="Olmo2ForCausalLM",
    fields=llama_fields(vocab_size=50304, rms_norm_eps=1e-5),
    implied={**LLAMA.implied, "norm_placement": "inside", "qk_norm": "all"},
    required={"attention_bias": False},
    infer=infer_llama,
    extra_config=write_rope,
    keymap=keymap("inside"),
)
ARCHITECTURES = (LLAMA, MISTRAL, QWEN2, QWEN3, OLMO2)
