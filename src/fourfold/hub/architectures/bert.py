"""BERT, RoBERTa and DistilBERT: config fields and tensor names of transformers."""

from collections.abc import Collection
from typing import Any

from fourfold.hub.architecture import Architecture, Field, Json, activation_field, field
from fourfold.hub.keymap import FLIP_CLASSES, OFFSET_2, Entry, Ignored, KeyMap, Rule, Tied
from fourfold.models import MaskedLM, MaskedLMConfig

IMPLIED = {"norm_placement": "post", "positions": "learned"}
POSITIONS = "embed.positions.weight"
REQUIRED = {
    "is_decoder": False,
    "add_cross_attention": False,
    "position_embedding_type": "absolute",
    "tie_word_embeddings": True,
}
BERT_FIELDS = (
    field("vocab_size", "vocab_size", default=30522),
    field("d_model", "hidden_size", default=768),
    field("n_layers", "num_hidden_layers", default=12),
    field("n_heads", "num_attention_heads", default=12),
    field("d_ff", "intermediate_size", default=3072),
    activation_field("hidden_act", "gelu"),
    field("dropout", "hidden_dropout_prob", default=0.1),
    field("attn_dropout", "attention_probs_dropout_prob", default=0.1),
    field("norm_eps", "layer_norm_eps", default=1e-12),
    field("n_segments", "type_vocab_size", default=2),
)
BERT_MAX_LEN = field("max_len", "max_position_embeddings", default=512)
# Positions start after the padding token, which is token 1.
ROBERTA_MAX_LEN = Field(
    "max_len", ("max_position_embeddings",), 514, lambda n: n - 2, lambda n: n + 2
)
ROBERTA_REQUIRED = {**REQUIRED, "pad_token_id": 1}


def encoder_entries(prefix: str) -> tuple[Entry, ...]:
    """Return the rules of the encoder layers, whose names BERT and RoBERTa share."""
    layer = prefix + "encoder.layer.{i}."
    return (
        Rule("embed.tokens.weight", prefix + "embeddings.word_embeddings.weight"),
        Rule("embed.segments.weight", prefix + "embeddings.token_type_embeddings.weight"),
        Rule("embed.norm.{p}", prefix + "embeddings.LayerNorm.{p}"),
        Rule("stack.blocks.{i}.attn.q.{p}", layer + "attention.self.query.{p}"),
        Rule("stack.blocks.{i}.attn.k.{p}", layer + "attention.self.key.{p}"),
        Rule("stack.blocks.{i}.attn.v.{p}", layer + "attention.self.value.{p}"),
        Rule("stack.blocks.{i}.attn.out.{p}", layer + "attention.output.dense.{p}"),
        Rule("stack.blocks.{i}.attn_norm.{p}", layer + "attention.output.LayerNorm.{p}"),
        Rule("stack.blocks.{i}.ff.up.{p}", layer + "intermediate.dense.{p}"),
        Rule("stack.blocks.{i}.ff.down.{p}", layer + "output.dense.{p}"),
        Rule("stack.blocks.{i}.ff_norm.{p}", layer + "output.LayerNorm.{p}"),
        Ignored(prefix + "embeddings.position_ids"),
    )


def _bert_heads(names: Collection[str], config: Json) -> dict[str, Any]:
    return {
        "head": "cls.predictions.bias" in names,
        "next_sentence": "cls.seq_relationship.weight" in names,
    }


def _bert_class(config: MaskedLMConfig) -> str:
    if config.head:
        return "BertForPreTraining" if config.next_sentence else "BertForMaskedLM"
    return "BertForNextSentencePrediction" if config.next_sentence else "BertModel"


BERT = Architecture(
    model_type="bert",
    model_class=MaskedLM,
    config_class=MaskedLMConfig,
    fields=(*BERT_FIELDS, BERT_MAX_LEN),
    implied=IMPLIED,
    required=REQUIRED,
    infer=_bert_heads,
    hf_class_for=_bert_class,
    export_if=lambda config: config.n_segments > 0,
    base_model_prefix="bert.",
    keymap=KeyMap(
        (
            *encoder_entries("bert."),
            Rule(POSITIONS, "bert.embeddings.position_embeddings.weight"),
            Rule("head.transform.{p}", "cls.predictions.transform.dense.{p}"),
            Rule("head.norm.{p}", "cls.predictions.transform.LayerNorm.{p}"),
            Rule("head.bias", "cls.predictions.bias"),
            Rule("next_sentence.pool.{p}", "bert.pooler.dense.{p}"),
            # Class 0 of transformers means "sentence B follows sentence A".
            Rule("next_sentence.classify.{p}", "cls.seq_relationship.{p}", FLIP_CLASSES),
            Rule((), "bert.pooler.dense.{p}"),
            Tied("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
            Tied("cls.predictions.decoder.bias", "cls.predictions.bias"),
        )
    ),
)

ROBERTA = Architecture(
    model_type="roberta",
    model_class=MaskedLM,
    config_class=MaskedLMConfig,
    fields=(*BERT_FIELDS, ROBERTA_MAX_LEN),
    implied=IMPLIED,
    required=ROBERTA_REQUIRED,
    infer=lambda names, config: {"head": "lm_head.bias" in names},
    hf_class_for=lambda config: "RobertaForMaskedLM" if config.head else "RobertaModel",
    base_model_prefix="roberta.",
    keymap=KeyMap(
        (
            *encoder_entries("roberta."),
            Rule(POSITIONS, "roberta.embeddings.position_embeddings.weight", OFFSET_2),
            Rule("head.transform.{p}", "lm_head.dense.{p}"),
            Rule("head.norm.{p}", "lm_head.layer_norm.{p}"),
            Rule("head.bias", "lm_head.bias"),
            Rule((), "roberta.pooler.dense.{p}"),
            Tied("lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"),
            Tied("lm_head.decoder.bias", "lm_head.bias"),
        )
    ),
    # RoBERTa requires padding to be token 1, so models trained by fourfold are exported as BERT.
    export_if=lambda config: False,
)

_LAYER = "distilbert.transformer.layer.{i}."

DISTILBERT = Architecture(
    model_type="distilbert",
    model_class=MaskedLM,
    config_class=MaskedLMConfig,
    fields=(
        field("vocab_size", "vocab_size", default=30522),
        field("d_model", "dim", default=768),
        field("n_layers", "n_layers", default=6),
        field("n_heads", "n_heads", default=12),
        field("d_ff", "hidden_dim", default=3072),
        activation_field("activation", "gelu"),
        field("dropout", "dropout", default=0.1),
        field("attn_dropout", "attention_dropout", default=0.1),
        field("max_len", "max_position_embeddings", default=512),
    ),
    # `sinusoidal_pos_embds` is not read: it only affects the initialization of the position table.
    implied={**IMPLIED, "norm_eps": 1e-12, "n_segments": 0},
    required={"tie_word_embeddings": True},
    infer=lambda names, config: {"head": "vocab_projector.bias" in names},
    hf_class_for=lambda config: "DistilBertForMaskedLM" if config.head else "DistilBertModel",
    base_model_prefix="distilbert.",
    keymap=KeyMap(
        (
            Rule("embed.tokens.weight", "distilbert.embeddings.word_embeddings.weight"),
            Rule(POSITIONS, "distilbert.embeddings.position_embeddings.weight"),
            Rule("embed.norm.{p}", "distilbert.embeddings.LayerNorm.{p}"),
            Rule("stack.blocks.{i}.attn.{m}.{p}", _LAYER + "attention.{m}_lin.{p}"),
            Rule("stack.blocks.{i}.attn_norm.{p}", _LAYER + "sa_layer_norm.{p}"),
            Rule("stack.blocks.{i}.ff.up.{p}", _LAYER + "ffn.lin1.{p}"),
            Rule("stack.blocks.{i}.ff.down.{p}", _LAYER + "ffn.lin2.{p}"),
            Rule("stack.blocks.{i}.ff_norm.{p}", _LAYER + "output_layer_norm.{p}"),
            Rule("head.transform.{p}", "vocab_transform.{p}"),
            Rule("head.norm.{p}", "vocab_layer_norm.{p}"),
            Rule("head.bias", "vocab_projector.bias"),
            Tied("vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight"),
        )
    ),
)
