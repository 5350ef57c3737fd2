"""Tasks: LightningModules that train and evaluate a model."""

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
