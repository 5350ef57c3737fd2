"""ModernBERT (Warner et al. 2024): config fields and tensor names of transformers."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from fourfold.core.validation import check_range
from fourfold.errors import InputError
from fourfold.hub import rotary
from fourfold.hub.architecture import (
    Architecture,
    Json,
    activation_field,
    check_allowed,
    field,
    size_fields,
)
from fourfold.hub.keymap import QKV, SPLIT_GATED, SPLIT_QKV, Extra, KeyMap, Rule
from fourfold.hub.preprocessing import infer_n_classes, label_entries
from fourfold.models import MaskedLM, MaskedLMConfig, SequenceClassifier, SequenceClassifierConfig

_BLOCK = "stack.blocks.{i}."
_LAYER = "model.layers.{i}."
# Keys of the biases in matrices, in norms and in the head.
_BIASES = ("attention_bias", "mlp_bias", "norm_bias", "classifier_bias")


def _read(names: Collection[str], config: Json) -> dict[str, Any]:
    """Return the native values that several keys of config.json determine."""
    biases = {key: bool(config.get(key, False)) for key in _BIASES}
    if len({*biases.values()}) > 1:
        listed = ", ".join(f"{key}={value}" for key, value in biases.items())
        raise InputError("must be equal, since one field gives all of them", option=listed)
    period, width = config.get("global_attn_every_n_layers", 3), config.get("local_attention", 128)
    check_range("global_attn_every_n_layers", period, minimum=1)
    letters = "".join("S" if i % period else "L" for i in range(rotary.count_layers(config, 22)))
    windows = rotary.read_windows(config, letters, width // 2 + 1)
    keys = ("global_rope_theta", "local_rope_theta")
    return {
        **windows,
        **rotary.read_two_ropes(config, windows["window"], keys, (160_000.0, 10_000.0)),
        "bias": biases["norm_bias"],
        "head": "decoder.bias" in names,
    }


def _write(config: MaskedLMConfig) -> dict[str, Any]:
    """Return the entries of config.json that several native fields determine."""
    ropes, types = rotary.write_two_ropes(config), rotary.layer_types(config)
    full = [i for i, kind in enumerate(types) if kind == rotary.LAYER_TYPES["L"]]
    return {
        **dict.fromkeys(_BIASES, config.bias),
        # Without a tokenizer, the defaults of transformers could be outside of the vocabulary.
        **{f"{role}_token_id": None for role in ("pad", "bos", "eos", "cls", "sep")},
        "layer_types": types,
        "global_attn_every_n_layers": full[1] if len(full) > 1 else len(types),
        "local_attention": 128 if config.window is None else 2 * (config.window - 1),
        "rope_parameters": ropes,
        "global_rope_theta": ropes["full_attention"]["rope_theta"],
        "local_rope_theta": ropes["sliding_attention"]["rope_theta"],
    }


MODERNBERT = Architecture(
    model_type="modernbert",
    hf_class=lambda config: "ModernBertForMaskedLM" if config.head else "ModernBertModel",
    model_class=MaskedLM,
    config_class=MaskedLMConfig,
    fields=(
        field("vocab_size", "vocab_size", default=50368),
        *size_fields(768, 22, 12, 1152),
        field("max_len", "max_position_embeddings", default=8192),
        field("norm_eps", "norm_eps", default=1e-5),
        field("ff_dropout", "mlp_dropout", default=0.0),
        activation_field("hidden_activation", "classifier_activation", default="gelu"),
    ),
    implied={
        "positions": "none",
        "n_segments": 0,
        "norm_placement": "pre",
        "embed_norm": True,
        "feed_forward": "glu",
        "dropout": 0.0,
        "attn_dropout": 0.0,
    },
    required={
        "attention_dropout": 0.0,
        "embedding_dropout": 0.0,
        "decoder_bias": True,
        "rope_scaling": None,
        "tie_word_embeddings": True,
    },
    infer=_read,
    extra_config=_write,
    base_model_prefix="model.",
    keymap=KeyMap(
        Rule("embed.tokens.weight", "model.embeddings.tok_embeddings.weight"),
        Rule("embed.norm.{p}", "model.embeddings.norm.{p}"),
        Rule(QKV, _LAYER + "attn.Wqkv.{p}", SPLIT_QKV),
        Rule(_BLOCK + "attn.out.{p}", _LAYER + "attn.Wo.{p}"),
        Rule(_BLOCK + "attn_norm.{p}", _LAYER + "attn_norm.{p}"),
        Rule((_BLOCK + "ff.up.{p}", _BLOCK + "ff.gate.{p}"), _LAYER + "mlp.Wi.{p}", SPLIT_GATED),
        Rule(_BLOCK + "ff.down.{p}", _LAYER + "mlp.Wo.{p}"),
        Rule(_BLOCK + "ff_norm.{p}", _LAYER + "mlp_norm.{p}"),
        Rule("stack.norm.{p}", "model.final_norm.{p}"),
        Rule("head.transform.{p}", "head.dense.{p}"),
        Rule("head.norm.{p}", "head.norm.{p}"),
        Rule("head.bias", "decoder.bias"),
        Extra("decoder.weight", tied_to="model.embeddings.tok_embeddings.weight"),
    ),
    export_if=lambda config: config.rope_theta is not None,
    unsaved=("dropout", "attn_dropout"),
)


def _read_classes(names: Collection[str], config: Json) -> dict[str, Any]:
    """Return the native values of a classifier that several keys of config.json determine."""
    check_allowed(config, {"classifier_pooling": ("cls", "mean")})
    pool = "mean" if config.get("classifier_pooling") == "mean" else "first"
    return {**_read(names, config), **infer_n_classes(names, config), "pool": pool}


def _write_classes(config: SequenceClassifierConfig) -> dict[str, Any]:
    pool = "cls" if config.pool == "first" else config.pool
    return {**_write(config), **label_entries(config), "classifier_pooling": pool}


_CLASS = "ModernBertForSequenceClassification"
MODERNBERT_CLASSES = replace(
    MODERNBERT,
    hf_class=_CLASS,
    model_class=SequenceClassifier,
    config_class=SequenceClassifierConfig,
    fields=(*MODERNBERT.fields, field("head_dropout", "classifier_dropout", default=0.0)),
    implied={**MODERNBERT.implied, "head_norm": True},
    # The tensors of a model that classifies tokens have the same names.
    required={**MODERNBERT.required, "architectures": [_CLASS]},
    infer=_read_classes,
    extra_config=_write_classes,
    keymap=KeyMap(
        Rule("classifier.pool.{p}", "head.dense.{p}"),
        Rule("classifier.norm.{p}", "head.norm.{p}"),
        Rule("classifier.classify.{p}", "classifier.{p}"),
        *MODERNBERT.keymap.entries,
    ),
    distinctive=("classifier.weight", "head.dense.weight"),
)
ARCHITECTURES = (MODERNBERT_CLASSES, MODERNBERT)
