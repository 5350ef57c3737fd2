"""Llama, Mistral, Qwen2, Qwen3, OLMo 2 and Gemma 3: config fields and tensor names of transformers.

A model of Gemma 3 is the text model, `gemma3_text`. Version 4 of transformers stores rotary
positions in `rope_theta` and `rope_scaling`, and version 5 in `rope_parameters`. Both are read and
written.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from fourfold.core.config import ROPE_SCALING
from fourfold.core.validation import check_type
from fourfold.errors import InputError
from fourfold.hub.architecture import Architecture, Json, activation_field, field
from fourfold.hub.keymap import ADD_ONE, KEEP, Extra, KeyMap, Rule, TensorOp
from fourfold.models import CausalLM, CausalLMConfig

_LAYER_TYPES = {"S": "sliding_attention", "L": "full_attention"}
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

    Args:
        norm_placement: A key of `_NORMS`.
        norm_op: Conversion of the weights of all norms.
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


def _read_rope(config: Json, parameters: Any, default_theta: float) -> dict[str, Any]:
    """Return `rope_theta` and `rope_scaling` of the native config.

    Args:
        config: Content of config.json.
        parameters: `rope_parameters`, or None in a file of version 4 of transformers.
        default_theta: Base of the wavelengths if no key gives it.

    Raises:
        InputError: The rotary positions are of a kind that fourfold does not support.
    """
    check_type("rope_parameters", parameters, Mapping | None)
    scaling = config.get("rope_scaling")
    check_type("rope_scaling", scaling, Mapping | None)
    theta = config.get("rope_theta", default_theta)
    values = {"rope_theta": theta, **(scaling or parameters or {})}
    values = {key: value for key, value in values.items() if value is not None}
    theta = values.pop("rope_theta")
    kind = values.pop("type", "default")
    kind = values.pop("rope_type", kind)
    factor = values.pop("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))
    if factor != 1.0:
        message = f"must be 1, since all channels of a head are rotated, got {factor}"
        raise InputError(message, option="partial_rotary_factor")
    if kind == "default":
        return {"rope_theta": theta, "rope_scaling": None}
    if kind not in ROPE_SCALING:
        message = f"must be default, {', '.join(ROPE_SCALING)}, got {str(kind)[:80]}"
        raise InputError(f"{message}; nearest: yarn", option="rope_type")
    if kind != "linear":
        length = config.get("max_position_embeddings")
        values.setdefault("original_max_position_embeddings", length)
    if kind == "yarn":
        values = _fold_mscales(values)
    return {"rope_theta": theta, "rope_scaling": {"rope_type": kind, **values}}


def _fold_mscales(values: dict[str, Any]) -> dict[str, Any]:
    """Replace `mscale` and `mscale_all_dim` of yarn by the `attention_factor` that they imply.

    As in transformers, the two keys have an effect only together and without an `attention_factor`.
    """
    scales = [values.pop(key, None) for key in ("mscale", "mscale_all_dim")]
    check_type("mscale", scales[0], float | None)
    check_type("mscale_all_dim", scales[1], float | None)
    if "attention_factor" in values or not all(scales):
        return values
    check_type("factor", values.get("factor"), float)
    growth = 0.1 * math.log(max(values["factor"], 1.0))
    factor = (scales[0] * growth + 1.0) / (scales[1] * growth + 1.0)
    return {**values, "attention_factor": factor}


def _write_rope(config: CausalLMConfig) -> dict[str, Any]:
    """Return the entries of config.json for rotary positions that all layers share."""
    scaling = config.rope_scaling
    return {
        "rope_parameters": {
            "rope_theta": config.rope_theta,
            **(scaling or {"rope_type": "default"}),
        },
        "rope_theta": config.rope_theta,
        "rope_scaling": scaling,
    }


def _infer(names: Collection[str], config: Json) -> dict[str, Any]:
    """Return the native values that several keys of config.json determine.

    The base model without a head, such as LlamaModel, has no output matrix, and its embeddings are
    read as tied.
    """
    is_base = "lm_head.weight" not in names and not any(
        "ForCausalLM" in str(name) for name in config.get("architectures") or ()
    )
    rope = _read_rope(config, config.get("rope_parameters"), 10_000.0)
    return rope | ({"tie_embeddings": True} if is_base else {})


def _shortest_period(letters: str) -> str:
    """Return the shortest pattern whose repetition begins with `letters`."""
    n_letters = len(letters)
    periods = (letters[:n] for n in range(1, n_letters + 1))
    return next(x for x in periods if (x * n_letters)[:n_letters] == letters)


def _read_windows(config: Json, letters: str, window: Any) -> dict[str, Any]:
    """Return `window` and `window_pattern` of the native config.

    Args:
        config: Content of config.json, whose `layer_types` have precedence.
        letters: S (with a window) or L (full attention) for each layer, if `layer_types` is absent.
        window: Size of the window, or None.

    Raises:
        InputError: `layer_types` does not name a supported type for each layer.
    """
    types = config.get("layer_types")
    if types is not None:
        known = {value: key for key, value in _LAYER_TYPES.items()}
        if not isinstance(types, list) or len(types) != len(letters) or not {*types} <= {*known}:
            message = f"must name one of {', '.join(known)} for each layer, got {str(types)[:80]}"
            raise InputError(message, option="layer_types")
        letters = "".join(known[value] for value in types)
    pattern = _shortest_period(letters) if letters else "L"
    if window is None or pattern == "L":
        return {"window": None, "window_pattern": None}
    return {"window": window, "window_pattern": None if pattern == "S" else pattern}


def _layer_types(config: CausalLMConfig) -> list[str]:
    """Return `layer_types` of config.json."""
    return [_LAYER_TYPES["L" if window is None else "S"] for window in config.windows()]


def _n_layers(config: Json, default: int) -> int:
    """Return the number of layers in config.json."""
    n_layers = config.get("num_hidden_layers", default)
    check_type("num_hidden_layers", n_layers, int)
    return min(int(n_layers), 1 << 16)  # a larger number is rejected with the native config


def _fields(*, kv_heads: int | None = None, d_head: int | None = None, **defaults: Any) -> Any:
    """Return the fields of config.json that all architectures have.

    Args:
        kv_heads: Default of `num_key_value_heads`; None means the number of heads.
        d_head: Default of `head_dim`; None means hidden_size / num_attention_heads.
        **defaults: Defaults of other keys that differ from those of Llama.
    """
    values = {
        "vocab_size": 32000,
        "intermediate_size": 11008,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        **defaults,
    }
    return (
        field("vocab_size", "vocab_size", default=values["vocab_size"]),
        field("d_model", "hidden_size", default=values.get("hidden_size", 4096)),
        field("n_layers", "num_hidden_layers", default=values.get("num_hidden_layers", 32)),
        field("n_heads", "num_attention_heads", default=values.get("num_attention_heads", 32)),
        field("n_kv_heads", "num_key_value_heads", default=kv_heads),
        field("d_head", "head_dim", default=d_head),
        field("d_ff", "intermediate_size", default=values["intermediate_size"]),
        field("max_len", "max_position_embeddings", default=values["max_position_embeddings"]),
        field("norm_eps", "rms_norm_eps", default=values["rms_norm_eps"]),
        field("attn_dropout", "attention_dropout", default=0.0),
        field("tie_embeddings", "tie_word_embeddings", default=values.get("tied", False)),
        activation_field(values.get("activation", "hidden_act"), default="silu"),
    )


def _read_llama(names: Collection[str], config: Json) -> dict[str, Any]:
    """Return the native values of Llama; biases are in all matrices or in none."""
    biases = bool(config.get("attention_bias", False)), bool(config.get("mlp_bias", False))
    if biases[0] != biases[1]:
        message = f"must equal mlp_bias ({biases[1]}), got {biases[0]}; nearest: model_type qwen2,"
        message += " with biases of queries, keys and values"
        raise InputError(message, option="attention_bias")
    return {**_infer(names, config), "bias": biases[0]}


def _read_mistral(names: Collection[str], config: Json) -> dict[str, Any]:
    window = config.get("sliding_window", 4096)
    return _infer(names, config) | _read_windows(config, "S" * _n_layers(config, 32), window)


def _read_qwen(names: Collection[str], config: Json) -> dict[str, Any]:
    """Return the native values of Qwen2 and Qwen3, whose windows may begin at a later layer."""
    n_layers, n_full = _n_layers(config, 32), config.get("max_window_layers", 28)
    check_type("max_window_layers", n_full, int)
    n_full = min(max(n_full, 0), n_layers)
    window = config.get("sliding_window", 4096) if config.get("use_sliding_window") else None
    windows = _read_windows(config, "L" * n_full + "S" * (n_layers - n_full), window)
    return _infer(names, config) | windows


def _write_qwen(config: CausalLMConfig) -> dict[str, Any]:
    types = _layer_types(config)
    n_full = next((i for i, kind in enumerate(types) if kind == _LAYER_TYPES["S"]), len(types))
    return {
        **_write_rope(config),
        "layer_types": types,
        "use_sliding_window": n_full < len(types),
        "sliding_window": config.window,
        "max_window_layers": n_full,
    }


def _read_gemma3(names: Collection[str], config: Json) -> dict[str, Any]:
    """Return the native values of Gemma 3, with rotary positions of two kinds of layers."""
    period = config.get("sliding_window_pattern", 6)
    check_type("sliding_window_pattern", period, int)
    letters = "".join(
        "S" if period < 1 or i % period else "L" for i in range(1, 1 + _n_layers(config, 26))
    )
    windows = _read_windows(config, letters, config.get("sliding_window", 4096))
    both = config.get("rope_parameters")
    check_type("rope_parameters", both, Mapping | None)
    parameters = both or {}
    rope = _read_rope(config, parameters.get("full_attention"), 1_000_000.0)
    local = {"rope_scaling": None, "rope_theta": config.get("rope_local_base_freq", 10_000.0)}
    local = _read_rope(local, parameters.get("sliding_attention"), 10_000.0)
    if local["rope_scaling"] is not None and windows["window"] is not None:
        message = "must be default, since only layers with full attention have scaled positions"
        raise InputError(message, option="rope_parameters.sliding_attention.rope_type")
    theta = local["rope_theta"] if windows["window"] is not None else None
    scalar = config.get("query_pre_attn_scalar", 256)
    check_type("query_pre_attn_scalar", scalar, float)
    if scalar <= 0:
        raise InputError(f"must be above 0, got {scalar}", option="query_pre_attn_scalar")
    d_model = config.get("hidden_size", 2304)
    check_type("hidden_size", d_model, int)
    return {
        **_infer(names, config),
        **windows,
        **rope,
        "rope_local_theta": theta,
        "attn_scale": scalar**-0.5,
        "embed_scale": max(d_model, 1) ** 0.5,
    }


def _write_gemma3(config: CausalLMConfig) -> dict[str, Any]:
    rope = _write_rope(config)
    full = rope["rope_parameters"]
    local = full
    if config.rope_local_theta is not None:
        local = {"rope_theta": config.rope_local_theta, "rope_type": "default"}
    scale = config.head_width**-0.5 if config.attn_scale is None else config.attn_scale
    types = _layer_types(config)
    period = next((i for i, kind in enumerate(types, 1) if kind == _LAYER_TYPES["L"]), 0)
    return {
        **rope,
        "rope_parameters": {"full_attention": full, "sliding_attention": local},
        "rope_local_base_freq": local["rope_theta"],
        "layer_types": types,
        "sliding_window": config.window,
        "sliding_window_pattern": period or len(types) + 1,
        "query_pre_attn_scalar": round(scale**-2),
    }


LLAMA = Architecture(
    model_type="llama",
    hf_class="LlamaForCausalLM",
    model_class=CausalLM,
    config_class=CausalLMConfig,
    fields=_fields(),
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
        **_write_rope(config),
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
    fields=_fields(kv_heads=8, intermediate_size=14336, max_position_embeddings=131072),
    infer=_read_mistral,
    extra_config=lambda config: {**_write_rope(config), "sliding_window": config.window},
)
_QWEN = {"vocab_size": 151936, "intermediate_size": 22016, "max_position_embeddings": 32768}
QWEN2 = replace(
    LLAMA,
    model_type="qwen2",
    hf_class="Qwen2ForCausalLM",
    fields=_fields(kv_heads=32, **_QWEN),
    implied={**LLAMA.implied, "qkv_bias": True},
    infer=_read_qwen,
    extra_config=_write_qwen,
)
QWEN3 = replace(
    LLAMA,
    model_type="qwen3",
    hf_class="Qwen3ForCausalLM",
    fields=_fields(kv_heads=32, d_head=128, **_QWEN),
    implied={**LLAMA.implied, "qk_norm": "head"},
    required={"attention_bias": False},
    infer=_read_qwen,
    extra_config=_write_qwen,
)
OLMO2 = replace(
    LLAMA,
    model_type="olmo2",
    hf_class="Olmo2ForCausalLM",
    fields=_fields(vocab_size=50304, rms_norm_eps=1e-5),
    implied={**LLAMA.implied, "norm_placement": "inside", "qk_norm": "all"},
    required={"attention_bias": False},
    infer=_infer,
    extra_config=_write_rope,
    keymap=keymap("inside"),
)
GEMMA3 = replace(
    LLAMA,
    model_type="gemma3_text",
    hf_class="Gemma3ForCausalLM",
    fields=_fields(
        kv_heads=4,
        d_head=256,
        vocab_size=262_208,
        hidden_size=2304,
        intermediate_size=9216,
        num_hidden_layers=26,
        num_attention_heads=8,
        max_position_embeddings=131_072,
        tied=True,
        activation="hidden_activation",
    ),
    implied={**LLAMA.implied, "norm_placement": "sandwich", "qk_norm": "head"},
    required={
        "attention_bias": False,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "use_bidirectional_attention": False,
    },
    infer=_read_gemma3,
    extra_config=_write_gemma3,
    keymap=keymap("sandwich", ADD_ONE),
)
