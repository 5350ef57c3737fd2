"""ELECTRA: config fields and tensor names of transformers.

Generator and discriminator have the same `model_type`. Of a model with both, the discriminator is
exported; `Electra.separate` also gives the generator.
"""

from dataclasses import replace

from fourfold.hub.architecture import Architecture, activation_field, field, size_fields
from fourfold.hub.keymap import Extra, KeyMap, Rule
from fourfold.layers.base_model import Model
from fourfold.models.electra.model import (
    Electra,
    ElectraDiscriminator,
    ElectraDiscriminatorConfig,
    ElectraGenerator,
    ElectraGeneratorConfig,
)
from fourfold.models.masked_lm.hub import encoder_rules

_EMBEDDINGS = "electra.embeddings."
_ENCODER = (
    Rule("embed.tokens.weight", _EMBEDDINGS + "word_embeddings.weight"),
    Rule("embed.positions.weight", _EMBEDDINGS + "position_embeddings.weight"),
    Rule("embed.segments.weight", _EMBEDDINGS + "token_type_embeddings.weight"),
    Rule("embed.norm.{p}", _EMBEDDINGS + "LayerNorm.{p}"),
    Extra(_EMBEDDINGS + "position_ids"),
    Rule("project.{p}", "electra.embeddings_project.{p}"),
    *encoder_rules("electra.", "attention.self", "attention.output.LayerNorm", "output.LayerNorm"),
)

DISCRIMINATOR = Architecture(
    model_type="electra",
    hf_class="ElectraForPreTraining",
    model_class=ElectraDiscriminator,
    config_class=ElectraDiscriminatorConfig,
    fields=(
        field("vocab_size", "vocab_size", default=30522),
        field("embedding_size", "embedding_size", default=128),
        field("n_segments", "type_vocab_size", default=2),
        field("max_len", "max_position_embeddings", default=512),
        *size_fields(256, 12, 4, 1024),
        activation_field("hidden_act", default="gelu"),
        field("dropout", "hidden_dropout_prob", default=0.1),
        field("attn_dropout", "attention_probs_dropout_prob", default=0.1),
        field("norm_eps", "layer_norm_eps", default=1e-12),
    ),
    implied={"norm_placement": "post"},
    required={
        "is_decoder": False,
        "add_cross_attention": False,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
    },
    base_model_prefix="electra.",
    keymap=KeyMap(
        *_ENCODER,
        Rule("head.dense.{p}", "discriminator_predictions.dense.{p}"),
        Rule("head.classify.{p}", "discriminator_predictions.dense_prediction.{p}"),
    ),
    export_if=lambda config: config.n_segments > 0,
)

GENERATOR = replace(
    DISCRIMINATOR,
    hf_class="ElectraForMaskedLM",
    model_class=ElectraGenerator,
    config_class=ElectraGeneratorConfig,
    # The head of transformers has this activation for any `hidden_act`.
    required={**DISCRIMINATOR.required, "hidden_act": "gelu"},
    keymap=KeyMap(
        *_ENCODER,
        Rule("head.transform.{p}", "generator_predictions.dense.{p}"),
        Rule("head.norm.{p}", "generator_predictions.LayerNorm.{p}"),
        Rule("head.bias", "generator_lm_head.bias"),
        Extra("generator_lm_head.weight", _EMBEDDINGS + "word_embeddings.weight"),
    ),
    distinctive=("generator_lm_head.bias",),
)
ARCHITECTURES = (GENERATOR, DISCRIMINATOR)


def prepare_export(model: Model) -> Model:
    """Return the discriminator of a model with both parts, and any other model itself."""
    return model.separate()[1] if isinstance(model, Electra) else model
