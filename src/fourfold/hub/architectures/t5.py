"""T5 of transformers: v1.0 and v1.1 under one name, told apart by what config.json says."""

from collections.abc import Collection
from typing import Any

from fourfold.hub.architecture import Architecture, Json, field
from fourfold.hub.keymap import Copy, Ignored, KeyMap, Layout, Line, Rule
from fourfold.models import T5, T5Config

# Their word for our two: `gelu` alone is exact, but `gated-gelu` is the approximation.
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
# Two matrices that keep their names apart, and are only there together.
_BOTH = Layout(lambda *x: x, lambda *x: x)


def _stack(name: str, ff: int) -> tuple[Line, ...]:
    """The rules of one stack, whose feed-forward layer is their sub-layer number `ff`."""
    mine, first = name + ".blocks.{i}.", name + ".block.{i}.layer.0."
    dense = f"{name}.block." + "{i}" + f".layer.{ff}."
    wide = dense + "DenseReluDense.wi"
    return (
        Rule(
            f"{name}.bias.table.weight",
            f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        ),
        Rule(mine + "attn.out.weight", first + "SelfAttention.o.weight"),
        Rule(mine + "attn.{m}.weight", first + "SelfAttention.{m}.weight"),
        Rule(mine + "attn_norm.weight", first + "layer_norm.weight"),
        Rule(
            (mine + "ff.up.weight", mine + "ff.gate.weight"),
            (wide + "_0.weight", wide + "_1.weight"),
            _BOTH,
        ),
        Rule(mine + "ff.up.weight", wide + ".weight"),
        Rule(mine + "ff.down.weight", dense + "DenseReluDense.wo.weight"),
        Rule(mine + "ff_norm.weight", dense + "layer_norm.weight"),
        Rule(f"{name}.norm.weight", f"{name}.final_layer_norm.weight"),
        Copy(f"{name}.embed_tokens.weight", "shared.weight"),
    )


_CROSS, _ATTN = "decoder.blocks.{i}.cross_attn", "decoder.block.{i}.layer.1."


def _told(names: Collection[str], said: Json) -> dict[str, Any]:
    """What tells v1.0 from v1.1.

    Where `scale_decoder_outputs` is not said yet, an output matrix of its own means that nothing is
    scaled; where it is said, `tie_word_embeddings` is always true. Only then does the matrix's
    being there decide; beside a scale it may be the copy that old checkpoints carry.
    """
    tied = said.get("tie_word_embeddings") is not False
    scaled = bool(said.get("scale_decoder_outputs", tied))
    own = "lm_head.weight" in names and not (tied and scaled)
    word = said.get("feed_forward_proj", "relu")
    kind, activation = _PROJECTIONS.get(word, ("mlp", word))
    return {
        "tie": "embeddings" if own else "all",
        "scale_output": scaled,
        "feed_forward": kind,
        "activation": activation,
    }


def _written(config: T5Config) -> dict[str, Any]:
    words = {ours: theirs for theirs, ours in _PROJECTIONS.items()}
    return {
        "feed_forward_proj": words[config.feed_forward, config.activation],
        "tie_word_embeddings": config.tie == "all",
        "scale_decoder_outputs": config.scale_output,
        # The numbers that our own tokenizers give.
        "pad_token_id": 0,
        "eos_token_id": 2,
        "decoder_start_token_id": 1,
    }


T5_BOTH = Architecture(
    model_type="t5",
    family=T5,
    config=T5Config,
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
    fixed={},  # the defaults of T5Config
    must={"is_decoder": False, "is_encoder_decoder": True},
    told=_told,
    class_of=lambda config: "T5ForConditionalGeneration",
    prefix="",
    written=_written,
    keys=KeyMap(
        (
            Rule("src_embed.tokens.weight", "shared.weight"),
            *_stack("encoder", ff=1),
            *_stack("decoder", ff=2),
            Rule(_CROSS + ".out.weight", _ATTN + "EncDecAttention.o.weight"),
            Rule(_CROSS + ".{m}.weight", _ATTN + "EncDecAttention.{m}.weight"),
            Rule(_CROSS + "_norm.weight", _ATTN + "layer_norm.weight"),
            Rule("head.own.weight", "lm_head.weight"),
            Copy("lm_head.weight", "shared.weight"),
            # In the first checkpoints; distances to a source mean nothing, and nobody read it.
            Ignored("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"),
        )
    ),
)
