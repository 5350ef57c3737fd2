"""BERT and RoBERTa with classification, tagging and span heads: tensor names of transformers.

Several classes of transformers share one `model_type`; the tensor names tell them apart.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from fourfold.hub.architecture import Architecture, Field
from fourfold.hub.architectures.bert import (
    BERT_FIELDS,
    BERT_MAX_LEN,
    IMPLIED,
    POSITIONS,
    REQUIRED,
    ROBERTA_MAX_LEN,
    ROBERTA_REQUIRED,
    encoder_entries,
)
from fourfold.hub.keymap import KEEP, OFFSET_2, Entry, KeyMap, Rule, TensorOp
from fourfold.hub.preprocessing import N_CLASSES_FIELD, infer_n_classes, label2id_entry
from fourfold.models import (
    SequenceClassifier,
    SequenceClassifierConfig,
    SpanExtractor,
    SpanExtractorConfig,
    TokenClassifier,
    TokenClassifierConfig,
)

# `classifier_dropout: null` means 0.1, the default of `hidden_dropout_prob`.
_HEAD_DROPOUT = Field(
    "head_dropout", ("classifier_dropout",), None, lambda p: 0.1 if p is None else p
)
_IMPLIED = {**IMPLIED, "head": False, "next_sentence": False}
_CLASSES: dict[str, tuple[Any, Any]] = {
    "ForSequenceClassification": (SequenceClassifier, SequenceClassifierConfig),
    "ForTokenClassification": (TokenClassifier, TokenClassifierConfig),
    "ForQuestionAnswering": (SpanExtractor, SpanExtractorConfig),
}


@dataclass(frozen=True)
class _Encoder:
    """Differences between BERT and RoBERTa that do not depend on the head.

    Args:
        model_type: Value of `model_type`, also the prefix of the tensor names.
        class_prefix: Beginning of the names of the transformers classes.
        max_len: Config field of the maximum length.
        required: See `Architecture`.
        position_op: Conversion of the table of position embeddings.
        export_if: See `Architecture`.
    """

    model_type: str
    class_prefix: str
    max_len: Field
    required: Mapping[str, Any]
    position_op: TensorOp
    export_if: Callable[[Any], bool]


_BERT = _Encoder("bert", "Bert", BERT_MAX_LEN, REQUIRED, KEEP, lambda config: config.n_segments > 0)
_ROBERTA = _Encoder(
    "roberta", "Roberta", ROBERTA_MAX_LEN, ROBERTA_REQUIRED, OFFSET_2, lambda config: False
)


def _architecture(
    encoder: _Encoder,
    class_suffix: str,
    head: tuple[Entry, ...],
    matches: Callable[[Collection[str]], bool],
) -> Architecture:
    """Create the architecture of the class `encoder.class_prefix + class_suffix`."""
    model_class, config_class = _CLASSES[class_suffix]
    hf_class = encoder.class_prefix + class_suffix
    prefix = encoder.model_type + "."
    has_classes = model_class is not SpanExtractor
    pooling = {"pool": "first"} if model_class is SequenceClassifier else {}
    return Architecture(
        model_type=encoder.model_type,
        model_class=model_class,
        config_class=config_class,
        fields=(
            *BERT_FIELDS,
            encoder.max_len,
            *((N_CLASSES_FIELD, _HEAD_DROPOUT) if has_classes else ()),
        ),
        implied={**_IMPLIED, **pooling},
        required=encoder.required,
        infer=infer_n_classes if has_classes else lambda names, config: {},
        hf_class_for=lambda config: hf_class,
        base_model_prefix=prefix,
        keymap=KeyMap(
            (
                *encoder_entries(prefix),
                Rule(
                    POSITIONS, prefix + "embeddings.position_embeddings.weight", encoder.position_op
                ),
                *head,
                Rule((), prefix + "pooler.dense.{p}"),
            )
        ),
        extra_config=label2id_entry if has_classes else lambda config: {},
        export_if=encoder.export_if,
        matches=matches,
        hf_class=hf_class,
    )


_TOKEN_HEAD = (Rule("classifier.{p}", "classifier.{p}"),)
_SPAN_HEAD = (Rule("span.{p}", "qa_outputs.{p}"),)
_BERT_SEQUENCE_HEAD = (
    Rule("classifier.pool.{p}", "bert.pooler.dense.{p}"),
    Rule("classifier.classify.{p}", "classifier.{p}"),
)
_ROBERTA_SEQUENCE_HEAD = (
    Rule("classifier.pool.{p}", "classifier.dense.{p}"),
    Rule("classifier.classify.{p}", "classifier.out_proj.{p}"),
)


def _has_pooled_classifier(names: Collection[str]) -> bool:
    return {"classifier.weight", "bert.pooler.dense.weight"} <= set(names)


def _has_bert_token_classifier(names: Collection[str]) -> bool:
    return "classifier.weight" in names and not _has_pooled_classifier(names)


def _has(name: str) -> Callable[[Collection[str]], bool]:
    return lambda names: name in names


BERT_HEADS: tuple[Architecture, ...] = (
    _architecture(_BERT, "ForSequenceClassification", _BERT_SEQUENCE_HEAD, _has_pooled_classifier),
    _architecture(_BERT, "ForTokenClassification", _TOKEN_HEAD, _has_bert_token_classifier),
    _architecture(_BERT, "ForQuestionAnswering", _SPAN_HEAD, _has("qa_outputs.weight")),
    _architecture(
        _ROBERTA,
        "ForSequenceClassification",
        _ROBERTA_SEQUENCE_HEAD,
        _has("classifier.out_proj.weight"),
    ),
    _architecture(_ROBERTA, "ForTokenClassification", _TOKEN_HEAD, _has("classifier.weight")),
    _architecture(_ROBERTA, "ForQuestionAnswering", _SPAN_HEAD, _has("qa_outputs.weight")),
)
