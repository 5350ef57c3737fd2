"""LightningModules: a model meets a batch."""

from fourfold.tasks.base import Task
from fourfold.tasks.captioning import Captioning
from fourfold.tasks.causal_classification import CausalSequenceClassification
from fourfold.tasks.causal_lm import CausalLanguageModeling
from fourfold.tasks.checkpoint import is_whole, load_task, read_file, rebuild
from fourfold.tasks.contrastive import ContrastiveLearning
from fourfold.tasks.convolution import ConvolutionalClassification
from fourfold.tasks.image_classification import ImageClassification
from fourfold.tasks.joined_translation import JoinedTranslation
from fourfold.tasks.masked_lm import MaskedLanguageModeling
from fourfold.tasks.question_answering import QuestionAnswering
from fourfold.tasks.recurrent import (
    RecurrentLanguageModeling,
    RecurrentSequenceClassification,
)
from fourfold.tasks.sequence_classification import SequenceClassification
from fourfold.tasks.text_to_text import TextToText
from fourfold.tasks.token_classification import TokenClassification
from fourfold.tasks.translation import Translation

__all__ = [
    "Captioning",
    "CausalLanguageModeling",
    "CausalSequenceClassification",
    "ContrastiveLearning",
    "ConvolutionalClassification",
    "ImageClassification",
    "JoinedTranslation",
    "MaskedLanguageModeling",
    "QuestionAnswering",
    "RecurrentLanguageModeling",
    "RecurrentSequenceClassification",
    "SequenceClassification",
    "Task",
    "TextToText",
    "TokenClassification",
    "Translation",
    "is_whole",
    "load_task",
    "read_file",
    "rebuild",
]
