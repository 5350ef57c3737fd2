"""ELECTRA: config fields and tensor names of transformers.

Generator and discriminator have the same `model_type`. Of a model with both, the discriminator is
exported; `Electra.separate` also gives the generator.
"""

from dataclasses import replace

from fourfold.hub.architecture import Architecture, field
from fourfold.hub.keymap import Extra, KeyMap, Rule
from fourfold.layers.base_model import Model
from fourfold.models.electra import model as electra
from fourfold.models.masked_lm import hub as bert

_ENCODER = (
    *bert.embedding_rules("electra."),
    Rule("project.{p}", "electra.embeddings_project.{p}"),
    *bert.encoder_rules("electra.", *bert.MODULES),
)

DISCRIMINATOR = Architecture(
    model_type="electra",
    hf_class="ElectraForPreTraining",
    model_class=electra.ElectraDiscriminator,
    config_class=electra.ElectraDiscriminatorConfig,
    fields=(
        field("vocab_size", "vocab_size", default=30522),
        field("embedding_size", "embedding_size", default=128),
        field("n_segments", "type_vocab_size", default=2),
        field("max_len", "max_position_embeddings", default=512),
        *bert.encoder_fields(0.1, (256, 12, 4, 1024)),
    ),
    implied={"norm_placement": "post"},
    required=bert.REQUIRED,
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
    model_class=electra.ElectraGenerator,
    config_class=electra.ElectraGeneratorConfig,
    # The head of transformers has this activation for any `hidden_act`.
    required={**bert.REQUIRED, "hidden_act": "gelu"},
    keymap=KeyMap(
        *_ENCODER,
        Rule("head.transform.{p}", "generator_predictions.dense.{p}"),
        Rule("head.norm.{p}", "generator_predictions.LayerNorm.{p}"),
        Rule("head.bias", "generator_lm_head.bias"),
        Extra("generator_lm_head.weight", "electra.embeddings.word_embeddings.weight"),
    ),
    distinctive=("generator_lm_head.bias",),
)
ARCHITECTURES = (GENERATOR, DISCRIMINATOR)


def prepare_export(model: Model) -> Model:
    """Return the discriminator of a model with both parts, and any other model itself."""
    return model.separate()[1] if isinstance(model, electra.Electra) else model
