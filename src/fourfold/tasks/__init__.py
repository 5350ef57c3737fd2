"""Tasks: LightningModules that train and evaluate a model."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fourfold.tasks.base import Task
    from fourfold.tasks.baselines import (
        ConvolutionalClassification,
        RecurrentLanguageModeling,
        RecurrentSequenceClassification,
    )
    from fourfold.tasks.captioning import Captioning
    from fourfold.tasks.causal_lm import CausalLanguageModeling
    from fourfold.tasks.contrastive import ContrastiveLearning
    from fourfold.tasks.image_classification import ImageClassification
    from fourfold.tasks.loading import load_task
    from fourfold.tasks.masked_lm import MaskedLanguageModeling
    from fourfold.tasks.question_answering import QuestionAnswering
    from fourfold.tasks.sequence_classification import (
        CausalSequenceClassification,
        SequenceClassification,
    )
    from fourfold.tasks.token_classification import TokenClassification
    from fourfold.tasks.translation import CompositeTranslation, TextToText, Translation

_MODULES = {
    "Captioning": "captioning",
    "CausalLanguageModeling": "causal_lm",
    "CausalSequenceClassification": "sequence_classification",
    "CompositeTranslation": "translation",
    "ContrastiveLearning": "contrastive",
    "ConvolutionalClassification": "baselines",
    "ImageClassification": "image_classification",
    "MaskedLanguageModeling": "masked_lm",
    "QuestionAnswering": "question_answering",
    "RecurrentLanguageModeling": "baselines",
    "RecurrentSequenceClassification": "baselines",
    "SequenceClassification": "sequence_classification",
    "Task": "base",
    "TextToText": "translation",
    "TokenClassification": "token_classification",
    "Translation": "translation",
    "load_task": "loading",
}
__all__ = [
    "Captioning",
    "CausalLanguageModeling",
    "CausalSequenceClassification",
    "CompositeTranslation",
    "ContrastiveLearning",
    "ConvolutionalClassification",
    "ImageClassification",
    "MaskedLanguageModeling",
    "QuestionAnswering",
    "RecurrentLanguageModeling",
    "RecurrentSequenceClassification",
    "SequenceClassification",
    "Task",
    "TextToText",
    "TokenClassification",
    "Translation",
    "load_task",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'fourfold.tasks' has no attribute {name!r}")
    value = getattr(import_module(f"fourfold.tasks.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
