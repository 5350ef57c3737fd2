"""BERT and RoBERTa with classification, tagging and span heads: tensor names of transformers.

Several classes of transformers share one `model_type`; the names of the head's tensors tell the
classes apart.
"""

from dataclasses import replace
from typing import Any

from fourfold.hub.architecture import Architecture, Field
from fourfold.hub.architectures.bert import BERT, ROBERTA
from fourfold.hub.keymap import KeyMap, Rule
from fourfold.hub.preprocessing import infer_n_classes, label_entries
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


def _with_head(
    encoder: Architecture, suffix: str, model_class: Any, config_class: Any, head: dict[str, str]
) -> Architecture:
    """Return the architecture of an encoder with a head for a downstream task.

    Args:
        encoder: `BERT` or `ROBERTA`.
        suffix: End of the name of the transformers class.
        model_class: Native model class.
        config_class: Native config class.
        head: External name of each native module of the head.
    """
    has_classes = model_class is not SpanExtractor
    pooling = {"pool": "first"} if model_class is SequenceClassifier else {}
    rules = [Rule(native + ".{p}", external + ".{p}") for native, external in head.items()]
    return replace(
        encoder,
        hf_class=encoder.model_type.capitalize() + suffix,
        model_class=model_class,
        config_class=config_class,
        fields=(*encoder.fields, *((_HEAD_DROPOUT,) if has_classes else ())),
        implied={**encoder.implied, "head": False, "next_sentence": False, **pooling},
        infer=infer_n_classes if has_classes else lambda names, config: {},
        extra_config=label_entries if has_classes else lambda config: {},
        keymap=KeyMap((*rules, *encoder.keymap.entries)),
        distinctive=tuple(external + ".weight" for external in head.values()),
    )


_SEQUENCES = ("ForSequenceClassification", SequenceClassifier, SequenceClassifierConfig)
_TOKENS = ("ForTokenClassification", TokenClassifier, TokenClassifierConfig)
_SPANS = ("ForQuestionAnswering", SpanExtractor, SpanExtractorConfig)
_BERT_POOLING = {"classifier.pool": "bert.pooler.dense", "classifier.classify": "classifier"}
_ROBERTA_POOLING = {
    "classifier.pool": "classifier.dense",
    "classifier.classify": "classifier.out_proj",
}

# A BERT for sequences has all tensors of a BERT for tokens, so it precedes the BERT for tokens.
BERT_HEADS = (
    _with_head(BERT, *_SEQUENCES, _BERT_POOLING),
    _with_head(BERT, *_TOKENS, {"classifier": "classifier"}),
    _with_head(BERT, *_SPANS, {"span": "qa_outputs"}),
    _with_head(ROBERTA, *_SEQUENCES, _ROBERTA_POOLING),
    _with_head(ROBERTA, *_TOKENS, {"classifier": "classifier"}),
    _with_head(ROBERTA, *_SPANS, {"span": "qa_outputs"}),
)
