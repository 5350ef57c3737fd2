"""BERT, RoBERTa and DistilBERT: config fields and tensor names of transformers.

Several classes of transformers, such as `BertForMaskedLM` and `BertForTokenClassification`, have
the same `model_type`. The names of the head's tensors tell the classes apart.
"""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from fourfold import models
from fourfold.core.validation import check_range, check_type
from fourfold.hub.architecture import (
    Architecture,
    Field,
    Json,
    activation_field,
    field,
    size_fields,
)
from fourfold.hub.keymap import FLIP_CLASSES, Entry, Extra, KeyMap, Rule, offset_rows
from fourfold.hub.preprocessing import infer_n_classes, label_entries
from fourfold.layers.base_model import Model

_BLOCK = "stack.blocks.{i}."
# Names of the attention, its norm and the norm of the feed-forward sub-layer in a layer.
MODULES = ("attention.self", "attention.output.LayerNorm", "output.LayerNorm")
REQUIRED = {
    "is_decoder": False,
    "add_cross_attention": False,
    "position_embedding_type": "absolute",
    "tie_word_embeddings": True,
}


def encoder_fields(
    dropout: float, sizes: tuple[int, int, int, int] = (768, 12, 12, 3072)
) -> tuple[Field, ...]:
    """Return the `Field`s of the encoder layers; BERT and ViT use the same keys in config.json."""
    return (
        *size_fields(*sizes),
        activation_field("hidden_act", default="gelu"),
        field("dropout", "hidden_dropout_prob", default=dropout),
        field("attn_dropout", "attention_probs_dropout_prob", default=dropout),
        field("norm_eps", "layer_norm_eps", default=1e-12),
    )


def attention_rules(attention: str) -> tuple[Entry, ...]:
    """Return the entries of the query, key and value projections, after a prefix of their names."""
    names = {"q": "query", "k": "key", "v": "value"}
    return tuple(Rule(_BLOCK + f"attn.{m}.{{p}}", attention + x + ".{p}") for m, x in names.items())


def encoder_rules(prefix: str, attention: str, attn_norm: str, ff_norm: str) -> tuple[Entry, ...]:
    """Return the `KeyMap` entries of the encoder layers; BERT and ViT share most of the names.

    All arguments are names in transformers.
    """
    layer = prefix + "encoder.layer.{i}."
    return (
        *attention_rules(layer + attention + "."),
        Rule(_BLOCK + "attn.out.{p}", layer + "attention.output.dense.{p}"),
        Rule(_BLOCK + "attn_norm.{p}", layer + attn_norm + ".{p}"),
        Rule(_BLOCK + "ff.up.{p}", layer + "intermediate.dense.{p}"),
        Rule(_BLOCK + "ff.down.{p}", layer + "output.dense.{p}"),
        Rule(_BLOCK + "ff_norm.{p}", layer + ff_norm + ".{p}"),
    )


def embedding_rules(prefix: str) -> tuple[Entry, ...]:
    """Return the entries of the embeddings, which BERT, RoBERTa and DistilBERT share."""
    names = prefix + "embeddings."
    return (
        Rule("embed.tokens.weight", names + "word_embeddings.weight"),
        Rule("embed.positions.weight", names + "position_embeddings.weight"),
        Rule("embed.segments.weight", names + "token_type_embeddings.weight"),
        Rule("embed.norm.{p}", names + "LayerNorm.{p}"),
        Extra(names + "position_ids"),
    )


def _bert_class(config: models.MaskedLMConfig) -> str:
    if config.head:
        return "BertForPreTraining" if config.next_sentence else "BertForMaskedLM"
    return "BertForNextSentencePrediction" if config.next_sentence else "BertModel"


BERT = Architecture(
    model_type="bert",
    hf_class=_bert_class,
    model_class=models.MaskedLM,
    config_class=models.MaskedLMConfig,
    fields=(
        field("vocab_size", "vocab_size", default=30522),
        field("n_segments", "type_vocab_size", default=2),
        *encoder_fields(dropout=0.1),
        field("max_len", "max_position_embeddings", default=512),
    ),
    implied={"norm_placement": "post", "positions": "learned"},
    required=REQUIRED,
    infer=lambda names, config: {
        "head": "cls.predictions.bias" in names,
        "next_sentence": "cls.seq_relationship.weight" in names,
    },
    export_if=lambda config: config.n_segments > 0,
    base_model_prefix="bert.",
    keymap=KeyMap(
        *embedding_rules("bert."),
        *encoder_rules("bert.", *MODULES),
        Rule("head.transform.{p}", "cls.predictions.transform.dense.{p}"),
        Rule("head.norm.{p}", "cls.predictions.transform.LayerNorm.{p}"),
        Rule("head.bias", "cls.predictions.bias"),
        Rule("next_sentence.pool.{p}", "bert.pooler.dense.{p}"),
        # Class 0 of transformers means "sentence B follows sentence A".
        Rule("next_sentence.classify.{p}", "cls.seq_relationship.{p}", FLIP_CLASSES),
        Extra("bert.pooler.dense.{p}", is_kept=True),
        Extra("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        Extra("cls.predictions.decoder.bias", "cls.predictions.bias"),
    ),
)


def _after_padding(architecture: Architecture, config: Json) -> Architecture:
    """Return a RoBERTa whose positions start after the padding token of config.json."""
    pad = config.get("pad_token_id", 1)
    check_type("pad_token_id", pad, int)
    check_range("pad_token_id", pad, minimum=0)
    offset = pad + 1
    max_len = Field(
        "max_len", ("max_position_embeddings",), 514, lambda n: n - offset, lambda n: n + offset
    )
    positions = "roberta.embeddings.position_embeddings.weight"
    rule = Rule("embed.positions.weight", positions, offset_rows(offset))
    return replace(
        architecture,
        fields=tuple(max_len if f.name == "max_len" else f for f in architecture.fields),
        keymap=KeyMap(rule, *architecture.keymap.entries),
    )


ROBERTA = replace(
    BERT,
    model_type="roberta",
    hf_class=lambda config: "RobertaForMaskedLM" if config.head else "RobertaModel",
    adapt=_after_padding,
    infer=lambda names, config: {"head": "lm_head.bias" in names},
    # BERT has the same layers, so models trained by fourfold are exported as BERT.
    export_if=lambda config: False,
    base_model_prefix="roberta.",
    keymap=KeyMap(
        *embedding_rules("roberta."),
        *encoder_rules("roberta.", *MODULES),
        Rule("head.transform.{p}", "lm_head.dense.{p}"),
        Rule("head.norm.{p}", "lm_head.layer_norm.{p}"),
        Rule("head.bias", "lm_head.bias"),
        Extra("roberta.pooler.dense.{p}", is_kept=True),
        Extra("lm_head.decoder.weight", "roberta.embeddings.word_embeddings.weight"),
        Extra("lm_head.decoder.bias", "lm_head.bias"),
    ),
)

_LAYER = "distilbert.transformer.layer.{i}."

DISTILBERT = replace(
    BERT,
    model_type="distilbert",
    hf_class=lambda config: "DistilBertForMaskedLM" if config.head else "DistilBertModel",
    fields=(
        BERT.fields[0],
        field("d_model", "dim", default=768),
        field("n_layers", "n_layers", default=6),
        field("n_heads", "n_heads", default=12),
        field("d_ff", "hidden_dim", default=3072),
        activation_field("activation", default="gelu"),
        field("dropout", "dropout", default=0.1),
        field("attn_dropout", "attention_dropout", default=0.1),
        BERT.fields[-1],
    ),
    # `sinusoidal_pos_embds` is not read: it only affects the initialization of the position table.
    implied={**BERT.implied, "norm_eps": 1e-12, "n_segments": 0},
    required={"tie_word_embeddings": True},
    infer=lambda names, config: {"head": "vocab_projector.bias" in names},
    export_if=lambda config: True,
    base_model_prefix="distilbert.",
    keymap=KeyMap(
        *embedding_rules("distilbert."),
        Rule(_BLOCK + "attn.{m}.{p}", _LAYER + "attention.{m}_lin.{p}"),
        Rule(_BLOCK + "attn_norm.{p}", _LAYER + "sa_layer_norm.{p}"),
        Rule(_BLOCK + "ff.up.{p}", _LAYER + "ffn.lin1.{p}"),
        Rule(_BLOCK + "ff.down.{p}", _LAYER + "ffn.lin2.{p}"),
        Rule(_BLOCK + "ff_norm.{p}", _LAYER + "output_layer_norm.{p}"),
        Rule("head.transform.{p}", "vocab_transform.{p}"),
        Rule("head.norm.{p}", "vocab_layer_norm.{p}"),
        Rule("head.bias", "vocab_projector.bias"),
        Extra("vocab_projector.weight", "distilbert.embeddings.word_embeddings.weight"),
    ),
)

# `classifier_dropout: null` means 0.1, the default of `hidden_dropout_prob`.
_HEAD_DROPOUT = Field(
    "head_dropout", ("classifier_dropout",), None, lambda p: 0.1 if p is None else p
)


def _with_head(
    encoder: Architecture, task: str, model_class: Any, config_class: Any, head: dict[str, str]
) -> Architecture:
    """Return the architecture of an encoder with a head for a downstream task of transformers.

    `head` is a dictionary from the native name of a module of the head to its name in transformers.
    """
    has_classes = model_class is not models.SpanExtractor
    pooling = {"pool": "first"} if model_class is models.SequenceClassifier else {}
    rules = [Rule(native + ".{p}", external + ".{p}") for native, external in head.items()]
    return replace(
        encoder,
        hf_class=f"{encoder.model_type.capitalize()}For{task}",
        model_class=model_class,
        config_class=config_class,
        fields=(*encoder.fields, *((_HEAD_DROPOUT,) if has_classes else ())),
        implied={**encoder.implied, "head": False, "next_sentence": False, **pooling},
        infer=infer_n_classes if has_classes else lambda names, config: {},
        extra_config=label_entries if has_classes else lambda config: {},
        keymap=KeyMap(*rules, *encoder.keymap.entries),
        distinctive=tuple(external + ".weight" for external in head.values()),
    )


_SEQUENCES = ("SequenceClassification", models.SequenceClassifier, models.SequenceClassifierConfig)
_TOKENS = ("TokenClassification", models.TokenClassifier, models.TokenClassifierConfig)
_SPANS = ("QuestionAnswering", models.SpanExtractor, models.SpanExtractorConfig)


def _with_heads(encoder: Architecture, pool: str, classify: str) -> tuple[Architecture, ...]:
    """Return the architectures of an encoder with a head for sequences, tokens and spans."""
    pooled = {"classifier.pool": pool, "classifier.classify": classify}
    # A BERT for sequences has all tensors of a BERT for tokens, so it precedes the BERT for tokens.
    return (
        _with_head(encoder, *_SEQUENCES, pooled),
        _with_head(encoder, *_TOKENS, {"classifier": "classifier"}),
        _with_head(encoder, *_SPANS, {"span": "qa_outputs"}),
    )


BERT_HEADS = (
    *_with_heads(BERT, "bert.pooler.dense", "classifier"),
    *_with_heads(ROBERTA, "classifier.dense", "classifier.out_proj"),
)
ARCHITECTURES = (*BERT_HEADS, DISTILBERT, ROBERTA, BERT)


def prepare_export(model: Model) -> Model:
    """Return a post-norm classifier without segments with one segment, of zeros, which BERT needs.

    Any other model is returned itself.
    """
    config: Any = model.config
    kinds = models.SequenceClassifier, models.TokenClassifier, models.SpanExtractor
    if type(model) not in kinds or config.n_segments or config.norm_placement != "post":
        return model
    result: Any = deepcopy(model)
    result.config = replace(config, n_segments=1)
    segment = torch.zeros_like(result.embed.tokens.weight[:1])
    result.embed.segments = nn.Embedding.from_pretrained(segment)
    return result
