"""GPT and GPT-2: config fields and tensor names of transformers."""

from collections.abc import Collection
from typing import Any

from fourfold.hub.architecture import Architecture, Field, Json, activation_field, field
from fourfold.hub.keymap import SPLIT_QKV_T, TRANSPOSE, Entry, Ignored, KeyMap, Rule, Tied
from fourfold.models import CausalLM, CausalLMConfig

_QKV = tuple("stack.blocks.{i}.attn." + projection + ".{p}" for projection in "qkv")
_LAYERS: tuple[Entry, ...] = (
    Rule(_QKV, "transformer.h.{i}.attn.c_attn.{p}", SPLIT_QKV_T),
    Rule("stack.blocks.{i}.attn.out.{p}", "transformer.h.{i}.attn.c_proj.{p}", TRANSPOSE),
    Rule("stack.blocks.{i}.attn_norm.{p}", "transformer.h.{i}.ln_1.{p}"),
    Rule("stack.blocks.{i}.ff.up.{p}", "transformer.h.{i}.mlp.c_fc.{p}", TRANSPOSE),
    Rule("stack.blocks.{i}.ff.down.{p}", "transformer.h.{i}.mlp.c_proj.{p}", TRANSPOSE),
    Rule("stack.blocks.{i}.ff_norm.{p}", "transformer.h.{i}.ln_2.{p}"),
    Rule("head.own.weight", "lm_head.weight"),
    Ignored("transformer.h.{i}.attn.bias"),
    Ignored("transformer.h.{i}.attn.masked_bias"),
)
_FIELDS = (
    field("n_layers", "n_layer", default=12),
    field("n_heads", "n_head", default=12),
    field("norm_eps", "layer_norm_epsilon", default=1e-5),
    field("dropout", "resid_pdrop", "embd_pdrop", default=0.1),
    field("attn_dropout", "attn_pdrop", default=0.1),
    field("tie_embeddings", "tie_word_embeddings", default=True),
)
# openai-gpt computes its "gelu" by the tanh approximation, and supports no other names.
_GPT1_ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}


def _gpt2_width(names: Collection[str], config: Json) -> dict[str, Any]:
    return {"d_ff": config.get("n_inner") or 4 * config.get("n_embd", 768)}


GPT2 = Architecture(
    model_type="gpt2",
    model_class=CausalLM,
    config_class=CausalLMConfig,
    fields=(
        field("vocab_size", "vocab_size", default=50257),
        field("d_model", "n_embd", default=768),
        field("d_ff", "n_inner"),
        field("max_len", "n_positions", default=1024),
        activation_field("activation_function", "gelu_new"),
        *_FIELDS,
    ),
    implied={"norm_placement": "pre", "positions": "learned", "embed_norm": False},
    required={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    infer=_gpt2_width,
    hf_class_for=lambda config: "GPT2LMHeadModel",
    base_model_prefix="transformer.",
    keymap=KeyMap(
        (
            Rule("embed.tokens.weight", "transformer.wte.weight"),
            Rule("embed.positions.weight", "transformer.wpe.weight"),
            Rule("stack.norm.{p}", "transformer.ln_f.{p}"),
            *_LAYERS,
            Tied("lm_head.weight", "transformer.wte.weight"),
        )
    ),
)

GPT1 = Architecture(
    model_type="openai-gpt",
    model_class=CausalLM,
    config_class=CausalLMConfig,
    fields=(
        field("vocab_size", "vocab_size", default=40478),
        # The feed-forward layer is always four times as wide as the model.
        Field("d_ff", ("n_embd",), 768, lambda width: 4 * width, lambda width: width // 4),
        field("d_model", "n_embd", default=768),
        field("max_len", "n_positions", default=512),
        activation_field("afn", "gelu", _GPT1_ACTIVATIONS),
        *_FIELDS,
    ),
    implied={"norm_placement": "post", "positions": "learned", "embed_norm": False},
    required={},
    infer=lambda names, config: {},
    hf_class_for=lambda config: "OpenAIGPTLMHeadModel",
    base_model_prefix="transformer.",
    keymap=KeyMap(
        (
            Rule("embed.tokens.weight", "transformer.tokens_embed.weight"),
            Rule("embed.positions.weight", "transformer.positions_embed.weight"),
            *_LAYERS,
            Tied("lm_head.weight", "transformer.tokens_embed.weight"),
        )
    ),
)
