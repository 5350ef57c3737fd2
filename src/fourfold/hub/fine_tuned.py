"""BERT and RoBERTa with the heads of downstream tasks, as transformers writes them.

Several classes there share one model_type: the names of the tensors tell them apart.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from fourfold.hub.architecture import Architecture, Field
from fourfold.hub.bert import (
    BERT_FIELDS,
    BERT_LENGTH,
    MUST,
    POSITIONS,
    POST_NORM,
    ROBERTA_LENGTH,
    ROBERTA_MUST,
    encoder,
)
from fourfold.hub.keymap import AS_IT_IS, FROM_TWO, KeyMap, Layout, Line, Rule
from fourfold.hub.labels import N_CLASSES, back, counted
from fourfold.models import (
    SequenceClassifier,
    SequenceClassifierConfig,
    SpanExtractor,
    SpanExtractorConfig,
    TokenClassifier,
    TokenClassifierConfig,
)

# What theirs drops before the head; nothing said means as much as elsewhere.
_DROPOUT = Field("head_dropout", ("classifier_dropout",), None, lambda p: 0.1 if p is None else p)
_FIXED = {**POST_NORM, "head": False, "next_sentence": False}
_FAMILIES: dict[str, tuple[Any, Any]] = {
    "ForSequenceClassification": (SequenceClassifier, SequenceClassifierConfig),
    "ForTokenClassification": (TokenClassifier, TokenClassifierConfig),
    "ForQuestionAnswering": (SpanExtractor, SpanExtractorConfig),
}


@dataclass(frozen=True)
class _Encoder:
    """What BERT and RoBERTa differ in, whatever stands on top.

    Args:
        model_type: Their word for it, with which names begin.
        word: The beginning of their classes' names.
        length: How they say the greatest length.
        must: As `Architecture.must`.
        layout: Of the table of positions.
        suits: As `Architecture.suits`.
    """

    model_type: str
    word: str
    length: Field
    must: Mapping[str, Any]
    layout: Layout
    suits: Callable[[Any], bool]


_BERT = _Encoder("bert", "Bert", BERT_LENGTH, MUST, AS_IT_IS, lambda config: config.n_segments > 0)
_ROBERTA = _Encoder(
    "roberta", "Roberta", ROBERTA_LENGTH, ROBERTA_MUST, FROM_TWO, lambda config: False
)


def _architecture(
    below: _Encoder, kind: str, head: tuple[Line, ...], holds: Callable[[Collection[str]], bool]
) -> Architecture:
    """One class of theirs: the encoder's word and `kind` make up its name."""
    family, config = _FAMILIES[kind]
    classes = family is not SpanExtractor
    root = below.model_type + "."
    return Architecture(
        model_type=below.model_type,
        family=family,
        config=config,
        fields=(*BERT_FIELDS, below.length, *((N_CLASSES, _DROPOUT) if classes else ())),
        fixed={**_FIXED, "pool": "first"} if family is SequenceClassifier else _FIXED,
        must=below.must,
        told=counted if classes else lambda names, config: {},
        class_of=lambda config: below.word + kind,
        prefix=root,
        keys=KeyMap(
            (
                *encoder(root),
                Rule(POSITIONS, root + "embeddings.position_embeddings.weight", below.layout),
                *head,
                Rule((), root + "pooler.dense.{p}"),
            )
        ),
        written=back if classes else lambda config: {},
        suits=below.suits,
        holds=holds,
        only=below.word + kind,
    )


_TAGS = (Rule("classifier.{p}", "classifier.{p}"),)
_SPAN = (Rule("span.{p}", "qa_outputs.{p}"),)
_BERT_POOLED = (
    Rule("classifier.pool.{p}", "bert.pooler.dense.{p}"),
    Rule("classifier.classify.{p}", "classifier.{p}"),
)
_ROBERTA_POOLED = (
    Rule("classifier.pool.{p}", "classifier.dense.{p}"),
    Rule("classifier.classify.{p}", "classifier.out_proj.{p}"),
)


def _pooled(names: Collection[str]) -> bool:
    return {"classifier.weight", "bert.pooler.dense.weight"} <= set(names)


FINE_TUNED: tuple[Architecture, ...] = (
    _architecture(_BERT, "ForSequenceClassification", _BERT_POOLED, _pooled),
    _architecture(
        _BERT, "ForTokenClassification", _TAGS,
        lambda names: "classifier.weight" in names and not _pooled(names),
    ),
    _architecture(
        _BERT, "ForQuestionAnswering", _SPAN, lambda names: "qa_outputs.weight" in names
    ),
    _architecture(
        _ROBERTA, "ForSequenceClassification", _ROBERTA_POOLED,
        lambda names: "classifier.out_proj.weight" in names,
    ),
    _architecture(
        _ROBERTA, "ForTokenClassification", _TAGS, lambda names: "classifier.weight" in names
    ),
    _architecture(
        _ROBERTA, "ForQuestionAnswering", _SPAN, lambda names: "qa_outputs.weight" in names
    ),
)  # fmt: skip
