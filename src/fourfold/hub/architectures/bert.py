"""BERT, RoBERTa and DistilBERT as transformers writes them."""

from collections.abc import Collection
from typing import Any

from fourfold.hub.architecture import Architecture, Field, activation, field
from fourfold.hub.keymap import FROM_TWO, REVERSED, Copy, Ignored, KeyMap, Line, Rule
from fourfold.models import MaskedLM, MaskedLMConfig

POST_NORM = {"norm_placement": "post", "positions": "learned"}
POSITIONS = "embed.positions.weight"
MUST = {
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
    activation("hidden_act", "gelu"),
    field("dropout", "hidden_dropout_prob", default=0.1),
    field("attn_dropout", "attention_probs_dropout_prob", default=0.1),
    field("norm_eps", "layer_norm_eps", default=1e-12),
    field("n_segments", "type_vocab_size", default=2),
)


def encoder(root: str) -> tuple[Line, ...]:
    """The layers, whose names RoBERTa took over from BERT."""
    layer = root + "encoder.layer.{i}."
    return (
        Rule("embed.tokens.weight", root + "embeddings.word_embeddings.weight"),
        Rule("embed.segments.weight", root + "embeddings.token_type_embeddings.weight"),
        Rule("embed.norm.{p}", root + "embeddings.LayerNorm.{p}"),
        Rule("stack.blocks.{i}.attn.q.{p}", layer + "attention.self.query.{p}"),
        Rule("stack.blocks.{i}.attn.k.{p}", layer + "attention.self.key.{p}"),
        Rule("stack.blocks.{i}.attn.v.{p}", layer + "attention.self.value.{p}"),
        Rule("stack.blocks.{i}.attn.out.{p}", layer + "attention.output.dense.{p}"),
        Rule("stack.blocks.{i}.attn_norm.{p}", layer + "attention.output.LayerNorm.{p}"),
        Rule("stack.blocks.{i}.ff.up.{p}", layer + "intermediate.dense.{p}"),
        Rule("stack.blocks.{i}.ff.down.{p}", layer + "output.dense.{p}"),
        Rule("stack.blocks.{i}.ff_norm.{p}", layer + "output.LayerNorm.{p}"),
        Ignored(root + "embeddings.position_ids"),
    )


def _bert_told(names: Collection[str], config: Any) -> dict[str, Any]:
    return {
        "head": "cls.predictions.bias" in names,
        "next_sentence": "cls.seq_relationship.weight" in names,
    }


def _bert_class(config: MaskedLMConfig) -> str:
    if config.head:
        return "BertForPreTraining" if config.next_sentence else "BertForMaskedLM"
    return "BertForNextSentencePrediction" if config.next_sentence else "BertModel"


BERT_LENGTH = field("max_len", "max_position_embeddings", default=512)
# Its positions begin after padding, which is token 1.
ROBERTA_LENGTH = Field(
    "max_len", ("max_position_embeddings",), 514, lambda n: n - 2, lambda n: n + 2
)
ROBERTA_MUST = {**MUST, "pad_token_id": 1}

BERT = Architecture(
    model_type="bert",
    family=MaskedLM,
    config=MaskedLMConfig,
    fields=(*BERT_FIELDS, BERT_LENGTH),
    fixed=POST_NORM,
    must=MUST,
    told=_bert_told,
    class_of=_bert_class,
    suits=lambda config: config.n_segments > 0,
    prefix="bert.",
    keys=KeyMap(
        (
            *encoder("bert."),
            Rule(POSITIONS, "bert.embeddings.position_embeddings.weight"),
            Rule("head.transform.{p}", "cls.predictions.transform.dense.{p}"),
            Rule("head.norm.{p}", "cls.predictions.transform.LayerNorm.{p}"),
            Rule("head.bias", "cls.predictions.bias"),
            Rule("next_sentence.pool.{p}", "bert.pooler.dense.{p}"),
            # Theirs calls the first class "it follows".
            Rule("next_sentence.classify.{p}", "cls.seq_relationship.{p}", REVERSED),
            Rule((), "bert.pooler.dense.{p}"),
            Copy("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
            Copy("cls.predictions.decoder.bias", "cls.predictions.bias"),
        )
    ),
)


def _roberta_told(names: Collection[str], config: Any) -> dict[str, Any]:
    return {"head": "lm_head.bias" in names}


ROBERTA = Architecture(
    model_type="roberta",
    family=MaskedLM,
    config=MaskedLMConfig,
    fields=(
        *BERT_FIELDS,
        ROBERTA_LENGTH,
    ),
    fixed=POST_NORM,
    must=ROBERTA_MUST,
    told=_roberta_told,
    class_of=lambda config: "RobertaForMaskedLM" if config.head else "RobertaModel",
    prefix="roberta.",
    keys=KeyMap(
        (
            *encoder("roberta."),
            Rule(POSITIONS, "roberta.embeddings.position_embeddings.weight", FROM_TWO),
            Rule("head.transform.{p}", "lm_head.dense.{p}"),
            Rule("head.norm.{p}", "lm_head.layer_norm.{p}"),
            Rule("head.bias", "lm_head.bias"),
            Rule((), "roberta.pooler.dense.{p}"),
            Copy("lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"),
            Copy("lm_head.decoder.bias", "lm_head.bias"),
        )
    ),
    suits=lambda config: False,  # it takes token 1 for padding; a model of ours goes out as BERT
)


def _distilbert_told(names: Collection[str], config: Any) -> dict[str, Any]:
    return {"head": "vocab_projector.bias" in names}


_LAYER = "distilbert.transformer.layer.{i}."

DISTILBERT = Architecture(
    model_type="distilbert",
    family=MaskedLM,
    config=MaskedLMConfig,
    fields=(
        field("vocab_size", "vocab_size", default=30522),
        field("d_model", "dim", default=768),
        field("n_layers", "n_layers", default=6),
        field("n_heads", "n_heads", default=12),
        field("d_ff", "hidden_dim", default=3072),
        activation("activation", "gelu"),
        field("dropout", "dropout", default=0.1),
        field("attn_dropout", "attention_dropout", default=0.1),
        field("max_len", "max_position_embeddings", default=512),
    ),
    # Whether its positions began as waves makes no difference to what they are now.
    fixed={**POST_NORM, "norm_eps": 1e-12, "n_segments": 0},
    must={"tie_word_embeddings": True},
    told=_distilbert_told,
    class_of=lambda config: "DistilBertForMaskedLM" if config.head else "DistilBertModel",
    prefix="distilbert.",
    keys=KeyMap(
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
            Copy("vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight"),
        )
    ),
)
