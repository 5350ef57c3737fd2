"""Gemma 2 and Gemma 3 (text): config fields and tensor names of transformers."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from fourfold.core.validation import check_range
from fourfold.errors import InputError
from fourfold.hub import rotary
from fourfold.hub.architecture import Json, field
from fourfold.hub.keymap import ADD_ONE
from fourfold.models import CausalLMConfig
from fourfold.models.causal_lm.hub_llama import LLAMA, keymap, llama_fields, tied_if_base


def _read_gemma(names: Collection[str], config: Json) -> dict[str, Any]:
    """Return the native values that Gemma 2 and Gemma 3 determine alike."""
    if config.get("use_bidirectional_attention"):
        raise InputError("must be false, got true", option="use_bidirectional_attention")
    scalar, d_model = config.get("query_pre_attn_scalar", 256), config.get("hidden_size", 2304)
    check_range("query_pre_attn_scalar", scalar, above=0.0)
    return {
        **tied_if_base(names, config),
        "attn_scale": scalar**-0.5,
        "embed_scale": max(d_model, 1) ** 0.5,
    }


def _write_gemma(config: CausalLMConfig) -> dict[str, Any]:
    """Return the entries of config.json that Gemma 2 and Gemma 3 have alike."""
    scale = config.head_width**-0.5 if config.attn_scale is None else config.attn_scale
    return {
        **rotary.write_rope(config),
        "layer_types": rotary.layer_types(config),
        "sliding_window": config.window,
        "query_pre_attn_scalar": round(scale**-2),
    }


def _read_gemma2(names: Collection[str], config: Json) -> dict[str, Any]:
    """Return the native values of Gemma 2, in which every other layer has a window."""
    letters = ("SL" * rotary.count_layers(config, 26))[: rotary.count_layers(config, 26)]
    return {
        **_read_gemma(names, config),
        **rotary.read_windows(config, letters, config.get("sliding_window", 4096)),
        **rotary.read_rope(config, config.get("rope_parameters"), 10_000.0),
    }


def _read_gemma3(names: Collection[str], config: Json) -> dict[str, Any]:
    """Return the native values of Gemma 3, with rotary positions of two kinds of layers."""
    period = config.get("sliding_window_pattern", 6)
    numbers = range(1, 1 + rotary.count_layers(config, 26))
    letters = "".join("S" if period < 1 or i % period else "L" for i in numbers)
    windows = rotary.read_windows(config, letters, config.get("sliding_window", 4096))
    keys = ("rope_theta", "rope_local_base_freq")
    rope = rotary.read_two_ropes(config, windows["window"], keys, (1_000_000.0, 10_000.0))
    return {**_read_gemma(names, config), **windows, **rope}


def _write_gemma3(config: CausalLMConfig) -> dict[str, Any]:
    ropes, types = rotary.write_two_ropes(config), rotary.layer_types(config)
    period = next((i for i, kind in enumerate(types, 1) if kind == rotary.LAYER_TYPES["L"]), 0)
    return {
        **_write_gemma(config),
        "rope_parameters": ropes,
        "rope_local_base_freq": ropes["sliding_attention"]["rope_theta"],
        "sliding_window_pattern": period or len(types) + 1,
    }


_SIZES: Any = {
    "sizes": (2304, 26, 8, 9216),
    "kv_heads": 4,
    "d_head": 256,
    "tied": True,
    "activation": "hidden_activation",
}
GEMMA2 = replace(
    LLAMA,
    model_type="gemma2",
    hf_class="Gemma2ForCausalLM",
    fields=(
        *llama_fields(**_SIZES, vocab_size=256_000, max_len=8192),
        field("score_cap", "attn_logit_softcapping", default=50.0),
        field("logit_cap", "final_logit_softcapping", default=30.0),
    ),
    implied={**LLAMA.implied, "norm_placement": "sandwich"},
    required={"attention_bias": False},
    infer=_read_gemma2,
    extra_config=_write_gemma,
    keymap=keymap("sandwich", ADD_ONE),
)
GEMMA3 = replace(
    GEMMA2,
    model_type="gemma3_text",
    hf_class="Gemma3ForCausalLM",
    fields=llama_fields(**_SIZES, vocab_size=262_208, max_len=131_072),
    implied={**GEMMA2.implied, "qk_norm": "head"},
    required={
        "attention_bias": False,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    },
    infer=_read_gemma3,
    extra_config=_write_gemma3,
)
ARCHITECTURES = (GEMMA2, GEMMA3)
