"""T5 v1.0 and v1.1: config fields and tensor names of transformers.

Both versions have the same `model_type`; entries of config.json tell them apart.
"""

from collections.abc import Collection
from typing import Any

from fourfold.errors import InputError
from fourfold.hub.architecture import Architecture, Json, field
from fourfold.hub.keymap import Entry, Ignored, KeyMap, Rule, TensorOp, Tied
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
# Two matrices that are only matched together.
_KEEP_BOTH = TensorOp(lambda *x: x, lambda *x: x)


def _stack_entries(name: str, ff_index: int) -> tuple[Entry, ...]:
    """Return the rules of one stack, whose feed-forward layer is sub-layer number `ff_index`."""
    block = name + ".blocks.{i}."
    attention = name + ".block.{i}.layer.0."
    feed_forward = f"{name}.block." + "{i}" + f".layer.{ff_index}."
    dense = feed_forward + "DenseReluDense."
    return (
        Rule(
            f"{name}.bias.table.weight",
            f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        ),
        Rule(block + "attn.out.weight", attention + "SelfAttention.o.weight"),
        Rule(block + "attn.{m}.weight", attention + "SelfAttention.{m}.weight"),
        Rule(block + "attn_norm.weight", attention + "layer_norm.weight"),
        Rule(
            (block + "ff.up.weight", block + "ff.gate.weight"),
            (dense + "wi_0.weight", dense + "wi_1.weight"),
            _KEEP_BOTH,
        ),
        Rule(block + "ff.up.weight", dense + "wi.weight"),
        Rule(block + "ff.down.weight", dense + "wo.weight"),
        Rule(block + "ff_norm.weight", feed_forward + "layer_norm.weight"),
        Rule(f"{name}.norm.weight", f"{name}.final_layer_norm.weight"),
        Tied(f"{name}.embed_tokens.weight", "shared.weight"),
    )


_CROSS_ATTN = "decoder.blocks.{i}.cross_attn"
_HF_CROSS_ATTN = "decoder.block.{i}.layer.1."


def _infer_version(names: Collection[str], config: Json) -> dict[str, Any]:
    """Infer output scaling, tied embeddings and feed-forward layer.

    transformers before version 5 writes no `scale_decoder_outputs`; outputs are then scaled if
    embeddings are tied. Newer versions write it and always set `tie_word_embeddings` to true, so an
    output matrix among the tensors decides. With scaled outputs that matrix may be a copy of the
    embedding, which old checkpoints contain.
    """
    tied = config.get("tie_word_embeddings") is not False
    scaled = bool(config.get("scale_decoder_outputs", tied))
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
    projections = {native: name for name, native in _PROJECTIONS.items()}
    if (config.feed_forward, config.activation) not in projections:
        raise InputError(f"{config.activation} has no name in T5's config", option="activation")
    return {
        "feed_forward_proj": projections[config.feed_forward, config.activation],
        "tie_word_embeddings": config.tie_embeddings == "all",
        "scale_decoder_outputs": config.scale_output,
        # Special token ids of tokenizers that fourfold trains.
        "pad_token_id": 0,
        "eos_token_id": 2,
        "decoder_start_token_id": 1,
    }


T5 = Architecture(
    model_type="t5",
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
    implied={},
    required={"is_decoder": False, "is_encoder_decoder": True},
    infer=_infer_version,
    hf_class_for=lambda config: "T5ForConditionalGeneration",
    base_model_prefix="",
    extra_config=_extra_config,
    keymap=KeyMap(
        (
            Rule("src_embed.tokens.weight", "shared.weight"),
            *_stack_entries("encoder", ff_index=1),
            *_stack_entries("decoder", ff_index=2),
            Rule(_CROSS_ATTN + ".out.weight", _HF_CROSS_ATTN + "EncDecAttention.o.weight"),
            Rule(_CROSS_ATTN + ".{m}.weight", _HF_CROSS_ATTN + "EncDecAttention.{m}.weight"),
            Rule(_CROSS_ATTN + "_norm.weight", _HF_CROSS_ATTN + "layer_norm.weight"),
            Rule("head.own.weight", "lm_head.weight"),
            Tied("lm_head.weight", "shared.weight"),
            # Part of the first checkpoints; cross-attention has no relative positions.
            Ignored("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"),
        )
    ),
)
