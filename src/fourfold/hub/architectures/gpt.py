"""GPT and GPT-2 as transformers writes them."""

from collections.abc import Collection
from typing import Any

from fourfold.hub.architecture import Architecture, Field, activation, field
from fourfold.hub.keymap import FUSED_TURNED, TURNED, Copy, Ignored, KeyMap, Line, Rule
from fourfold.models import CausalLM, CausalLMConfig

_QKV = tuple("stack.blocks.{i}.attn." + part + ".{p}" for part in "qkv")
_LAYERS: tuple[Line, ...] = (
    Rule(_QKV, "transformer.h.{i}.attn.c_attn.{p}", FUSED_TURNED),
    Rule("stack.blocks.{i}.attn.out.{p}", "transformer.h.{i}.attn.c_proj.{p}", TURNED),
    Rule("stack.blocks.{i}.attn_norm.{p}", "transformer.h.{i}.ln_1.{p}"),
    Rule("stack.blocks.{i}.ff.up.{p}", "transformer.h.{i}.mlp.c_fc.{p}", TURNED),
    Rule("stack.blocks.{i}.ff.down.{p}", "transformer.h.{i}.mlp.c_proj.{p}", TURNED),
    Rule("stack.blocks.{i}.ff_norm.{p}", "transformer.h.{i}.ln_2.{p}"),
    Rule("head.own.weight", "lm_head.weight"),
    Ignored("transformer.h.{i}.attn.bias"),
    Ignored("transformer.h.{i}.attn.masked_bias"),
)
_FIELDS = (
    field("n_layers", "n_layer", default=12),
    field("n_heads", "n_head", default=12),
    field("max_len", "n_positions", default=1024),
    field("norm_eps", "layer_norm_epsilon", default=1e-5),
    field("dropout", "resid_pdrop", "embd_pdrop", default=0.1),
    field("attn_dropout", "attn_pdrop", default=0.1),
    field("tie", "tie_word_embeddings", default=True),
)


def _gpt2_width(names: Collection[str], config: Any) -> dict[str, Any]:
    return {"d_ff": config.get("n_inner") or 4 * config.get("n_embd", 768)}


GPT2 = Architecture(
    model_type="gpt2",
    family=CausalLM,
    config=CausalLMConfig,
    fields=(
        field("vocab_size", "vocab_size", default=50257),
        field("d_model", "n_embd", default=768),
        field("d_ff", "n_inner"),
        activation("activation_function", "gelu_new"),
        *_FIELDS,
    ),
    fixed={"norm_placement": "pre", "positions": "learned", "embed_norm": False},
    must={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    told=_gpt2_width,
    class_of=lambda config: "GPT2LMHeadModel",
    prefix="transformer.",
    keys=KeyMap(
        (
            Rule("embed.tokens.weight", "transformer.wte.weight"),
            Rule("embed.positions.weight", "transformer.wpe.weight"),
            Rule("stack.norm.{p}", "transformer.ln_f.{p}"),
            *_LAYERS,
            Copy("lm_head.weight", "transformer.wte.weight"),
        )
    ),
)

GPT1 = Architecture(
    model_type="openai-gpt",
    family=CausalLM,
    config=CausalLMConfig,
    fields=(
        field("vocab_size", "vocab_size", default=40478),
        # Its feed-forward layer is always four times as wide as the model.
        Field("d_ff", ("n_embd",), 768, lambda width: 4 * width, lambda width: width // 4),
        field("d_model", "n_embd", default=768),
        # What it calls gelu is the approximation by tanh, and it knows no other words.
        activation(
            "afn", "gelu", {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}
        ),
        *(entry for entry in _FIELDS if entry.ours != "max_len"),
        field("max_len", "n_positions", default=512),
    ),
    fixed={"norm_placement": "post", "positions": "learned", "embed_norm": False},
    must={},
    told=lambda names, config: {},
    class_of=lambda config: "OpenAIGPTLMHeadModel",
    prefix="transformer.",
    keys=KeyMap(
        (
            Rule("embed.tokens.weight", "transformer.tokens_embed.weight"),
            Rule("embed.positions.weight", "transformer.positions_embed.weight"),
            *_LAYERS,
            Copy("lm_head.weight", "transformer.tokens_embed.weight"),
        )
    ),
)
