"""The encoder-decoders of transformers that are ours by another name: Marian, BART, Pegasus."""

from collections.abc import Collection
from typing import Any

from fourfold.hub.architecture import Architecture, Field, activation, field
from fourfold.hub.keymap import FROM_TWO, WITH_ONE, Copy, KeyMap, Line, Rule
from fourfold.models import EncoderDecoder, EncoderDecoderConfig


def _fields(*vocabularies: str) -> tuple[Field, ...]:
    return (
        field("vocab_size", "vocab_size", *vocabularies, default=58101),
        field("d_model", "d_model", default=1024),
        field("n_layers", "encoder_layers", default=12),
        Field("n_decoder_layers", ("decoder_layers",), 12),
        field("n_heads", "encoder_attention_heads", "decoder_attention_heads", default=16),
        field("d_ff", "encoder_ffn_dim", "decoder_ffn_dim", default=4096),
        activation("activation_function", "gelu"),
        field("dropout", "dropout", default=0.1),
        field("attn_dropout", "attention_dropout", default=0.0),
        field("ff_dropout", "activation_dropout", default=0.0),
        field("max_len", "max_position_embeddings", default=1024),
        field("embed_scale", "scale_embedding", default=False),
    )  # fmt: skip


def _layers(ours: str, theirs: str) -> tuple[Line, ...]:
    mine, layer = ours + ".blocks.{i}.", f"model.{theirs}" + ".layers.{i}."
    return (
        Rule(mine + "attn.out.{p}", layer + "self_attn.out_proj.{p}"),
        Rule(mine + "attn.{m}.{p}", layer + "self_attn.{m}_proj.{p}"),
        Rule(mine + "attn_norm.{p}", layer + "self_attn_layer_norm.{p}"),
        Rule(mine + "ff.up.{p}", layer + "fc1.{p}"),
        Rule(mine + "ff.down.{p}", layer + "fc2.{p}"),
        Rule(mine + "ff_norm.{p}", layer + "final_layer_norm.{p}"),
    )


_CROSS, _ATTN = "decoder.blocks.{i}.cross_attn", "model.decoder.layers.{i}.encoder_attn"
_COMMON: tuple[Line, ...] = (
    Rule("src_embed.tokens.weight", "model.shared.weight"),
    *_layers("encoder", "encoder"),
    *_layers("decoder", "decoder"),
    Rule(_CROSS + ".out.{p}", _ATTN + ".out_proj.{p}"),
    Rule(_CROSS + ".{m}.{p}", _ATTN + ".{m}_proj.{p}"),
    Rule(_CROSS + "_norm.{p}", _ATTN + "_layer_norm.{p}"),
    Rule("head.bias", "final_logits_bias", WITH_ONE),
    Copy("model.encoder.embed_tokens.weight", "model.shared.weight"),
    Copy("model.decoder.embed_tokens.weight", "model.shared.weight"),
    Copy("lm_head.weight", "model.shared.weight"),
)
# Fixed waves, which some versions write down and some do not.
_CONSTANTS = {
    "model.encoder.embed_positions.weight": "src_embed.positions.weight",
    "model.decoder.embed_positions.weight": "tgt_embed.positions.weight",
}
_WAVES: tuple[Line, ...] = tuple(Rule((), name) for name in _CONSTANTS)


def _told(names: Collection[str], config: Any) -> dict[str, Any]:
    return {"output_bias": "final_logits_bias" in names}


def _told_bart(names: Collection[str], config: Any) -> dict[str, Any]:
    """A decoder of theirs begins with the end of a text, and the begin comes second."""
    start, bos = config.get("decoder_start_token_id", 2), config.get("bos_token_id", 0)
    return {**_told(names, config), "start_id": None if start == bos else start}


def _tokens(config: EncoderDecoderConfig) -> dict[str, Any]:
    """The numbers that our own tokenizers give; theirs by default lie beyond most vocabularies.

    By default theirs force a last token, too: padding, of our numbers, or the begin of a sentence.
    """
    start = 1 if config.start_id is None else config.start_id
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": start}
    return ids | {"forced_eos_token_id": None}


_FIXED = {"tie": "all", "norm_eps": 1e-5}
_MUST = {"tie_word_embeddings": True}

MARIAN = Architecture(
    model_type="marian",
    family=EncoderDecoder,
    config=EncoderDecoderConfig,
    fields=_fields("decoder_vocab_size"),
    fixed={
        **_FIXED,
        "norm_placement": "post",
        "positions": "sinusoidal_halves",
        "embed_norm": False,
    },
    must={**_MUST, "share_encoder_decoder_embeddings": True},
    told=_told,
    class_of=lambda config: "MarianMTModel",
    prefix="model.",
    written=_tokens,
    keys=KeyMap((*_COMMON, *_WAVES)),
    constants=_CONSTANTS,
)

PEGASUS = Architecture(
    model_type="pegasus",
    family=EncoderDecoder,
    config=EncoderDecoderConfig,
    fields=_fields(),
    fixed={
        **_FIXED,
        "norm_placement": "pre",
        "positions": "sinusoidal_halves",
        "embed_norm": False,
    },
    must=_MUST,
    told=_told,
    class_of=lambda config: "PegasusForConditionalGeneration",
    prefix="model.",
    written=_tokens,
    keys=KeyMap(
        (
            *_COMMON,
            Rule("encoder.norm.{p}", "model.encoder.layer_norm.{p}"),
            Rule("decoder.norm.{p}", "model.decoder.layer_norm.{p}"),
            *_WAVES,
        )
    ),
    constants=_CONSTANTS,
)

BART = Architecture(
    model_type="bart",
    family=EncoderDecoder,
    config=EncoderDecoderConfig,
    fields=_fields(),
    fixed={**_FIXED, "norm_placement": "post", "positions": "learned", "embed_norm": True},
    must=_MUST,
    told=_told_bart,
    class_of=lambda config: "BartForConditionalGeneration",
    prefix="model.",
    written=_tokens,
    keys=KeyMap(
        (
            *_COMMON,
            Rule("src_embed.positions.weight", "model.encoder.embed_positions.weight", FROM_TWO),
            Rule("tgt_embed.positions.weight", "model.decoder.embed_positions.weight", FROM_TWO),
            Rule("src_embed.norm.{p}", "model.encoder.layernorm_embedding.{p}"),
            Rule("tgt_embed.norm.{p}", "model.decoder.layernorm_embedding.{p}"),
        )
    ),
)
