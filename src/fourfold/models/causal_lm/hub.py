"""GPT and GPT-2: config fields and tensor names of transformers."""

from dataclasses import replace

from fourfold.hub.architecture import Architecture, Field, activation_field, field
from fourfold.hub.keymap import QKV, SPLIT_QKV_T, TRANSPOSE, Extra, KeyMap, Rule, TensorOp
from fourfold.models import CausalLM, CausalLMConfig


def keymap(tokens: str, positions: str, qkv_op: TensorOp, matrix_op: TensorOp) -> KeyMap:
    """Return the key map of a model with the tensor names of OpenAI's GPT.

    Args:
        tokens: Name of the token embeddings in transformers or nanoGPT, such as "wte".
        positions: Name of the position embeddings.
        qkv_op: Conversion of the matrix of the query, key and value projections.
        matrix_op: Conversion of the other matrices of a block.
    """
    layer = "transformer.h.{i}."
    block = "stack.blocks.{i}."
    return KeyMap(
        Rule("embed.tokens.weight", f"transformer.{tokens}.weight"),
        Rule("embed.positions.weight", f"transformer.{positions}.weight"),
        Rule(QKV, layer + "attn.c_attn.{p}", qkv_op),
        Rule(block + "attn.out.{p}", layer + "attn.c_proj.{p}", matrix_op),
        Rule(block + "attn_norm.{p}", layer + "ln_1.{p}"),
        Rule(block + "ff.up.{p}", layer + "mlp.c_fc.{p}", matrix_op),
        Rule(block + "ff.down.{p}", layer + "mlp.c_proj.{p}", matrix_op),
        Rule(block + "ff_norm.{p}", layer + "ln_2.{p}"),
        Rule("stack.norm.{p}", "transformer.ln_f.{p}"),
        Rule("head.own.weight", "lm_head.weight"),  # if embeddings are not tied
        Extra("lm_head.weight", tied_to=f"transformer.{tokens}.weight"),
        Extra(layer + "attn.bias"),  # a causal mask
        Extra(layer + "attn.masked_bias"),
    )


_FIELDS = (
    field("d_model", "n_embd", default=768),
    field("n_layers", "n_layer", default=12),
    field("n_heads", "n_head", default=12),
    field("norm_eps", "layer_norm_epsilon", default=1e-5),
    field("dropout", "resid_pdrop", "embd_pdrop", default=0.1),
    field("attn_dropout", "attn_pdrop", default=0.1),
    field("tie_embeddings", "tie_word_embeddings", default=True),
)
GPT2 = Architecture(
    model_type="gpt2",
    hf_class="GPT2LMHeadModel",
    model_class=CausalLM,
    config_class=CausalLMConfig,
    fields=(
        *_FIELDS,
        field("vocab_size", "vocab_size", default=50257),
        field("d_ff", "n_inner"),
        field("max_len", "n_positions", default=1024),
        activation_field("activation_function", default="gelu_new"),
    ),
    implied={"norm_placement": "pre", "positions": "learned", "embed_norm": False},
    required={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
    },
    infer=lambda names, config: {"d_ff": config.get("n_inner") or 4 * config.get("n_embd", 768)},
    base_model_prefix="transformer.",
    keymap=keymap("wte", "wpe", SPLIT_QKV_T, TRANSPOSE),
)

# openai-gpt computes its "gelu" by the tanh approximation, and supports no other names.
_GPT1_ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}

GPT1 = replace(
    GPT2,
    model_type="openai-gpt",
    hf_class="OpenAIGPTLMHeadModel",
    fields=(
        # The feed-forward layer is always four times as wide as the model. For export, `d_model` in
        # `_FIELDS` determines the key.
        Field("d_ff", ("n_embd",), 768, lambda width: 4 * width, lambda width: width // 4),
        *_FIELDS,
        field("vocab_size", "vocab_size", default=40478),
        field("max_len", "n_positions", default=512),
        activation_field("afn", default="gelu", names=_GPT1_ACTIVATIONS),
    ),
    implied={**GPT2.implied, "norm_placement": "post"},
    required={},
    infer=lambda names, config: {},
    keymap=keymap("tokens_embed", "positions_embed", SPLIT_QKV_T, TRANSPOSE),
)
ARCHITECTURES = (GPT2, GPT1)
