"""BERT and RoBERTa with the heads of downstream tasks, as transformers writes them.

Several classes there share one model_type: the names of the tensors tell them apart.
"""

from collections.abc import Callable, Collection
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
from fourfold.hub.keymap import AS_IT_IS, FROM_TWO, KeyMap, Line, Rule
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


def _architecture(
    model_type: str,
    theirs: str,
    kind: str,
    head: tuple[Line, ...],
    holds: Callable[[Collection[str]], bool],
) -> Architecture:
    """One class of theirs: `theirs` and `kind` make up its name."""
    family, config = _FAMILIES[kind]
    classes = family is not SpanExtractor
    roberta = model_type == "roberta"
    root = model_type + "."
    layout = FROM_TWO if roberta else AS_IT_IS
    return Architecture(
        model_type=model_type,
        family=family,
        config=config,
        fields=(
            *BERT_FIELDS,
            ROBERTA_LENGTH if roberta else BERT_LENGTH,
            *((N_CLASSES, _DROPOUT) if classes else ()),
        ),
        fixed={**_FIXED, "pool": "first"} if family is SequenceClassifier else _FIXED,
        must=ROBERTA_MUST if roberta else MUST,
        told=counted if classes else lambda names, config: {},
        class_of=lambda config: theirs + kind,
        prefix=root,
        keys=KeyMap(
            (
                *encoder(root),
                Rule(POSITIONS, root + "embeddings.position_embeddings.weight", layout),
                *head,
                Rule((), root + "pooler.dense.{p}"),
            )
        ),
        written=back if classes else lambda config: {},
        suits=lambda config: not roberta and config.n_segments > 0,
        holds=holds,
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
    _architecture("bert", "Bert", "ForSequenceClassification", _BERT_POOLED, _pooled),
    _architecture(
        "bert", "Bert", "ForTokenClassification", _TAGS,
        lambda names: "classifier.weight" in names and not _pooled(names),
    ),
    _architecture(
        "bert", "Bert", "ForQuestionAnswering", _SPAN, lambda names: "qa_outputs.weight" in names
    ),
    _architecture(
        "roberta", "Roberta", "ForSequenceClassification", _ROBERTA_POOLED,
        lambda names: "classifier.out_proj.weight" in names,
    ),
    _architecture(
        "roberta", "Roberta", "ForTokenClassification", _TAGS,
        lambda names: "classifier.weight" in names,
    ),
    _architecture(
        "roberta", "Roberta", "ForQuestionAnswering", _SPAN,
        lambda names: "qa_outputs.weight" in names,
    ),
)  # fmt: skip
