# Written by scripts/type_stubs.py; do not edit.

from typing import Any

from fourfold.models.baselines.task import (
    ConvolutionalClassification as ConvolutionalClassification,
)
from fourfold.models.baselines.task import (
    ConvolutionalLanguageModeling as ConvolutionalLanguageModeling,
)
from fourfold.models.baselines.task import LadderLanguageModeling as LadderLanguageModeling
from fourfold.models.baselines.task import (
    LadderSequenceClassification as LadderSequenceClassification,
)
from fourfold.models.causal_lm.sequence_classification_task import (
    CausalSequenceClassification as CausalSequenceClassification,
)
from fourfold.models.causal_lm.task import CausalLanguageModeling as CausalLanguageModeling
from fourfold.models.contrastive.task import ContrastiveLearning as ContrastiveLearning
from fourfold.models.contrastive.task import (
    SigmoidContrastiveLearning as SigmoidContrastiveLearning,
)
from fourfold.models.electra.task import ReplacedTokenDetection as ReplacedTokenDetection
from fourfold.models.encoder_decoder.captioning_task import Captioning as Captioning
from fourfold.models.encoder_decoder.translation_task import (
    CompositeTranslation as CompositeTranslation,
)
from fourfold.models.encoder_decoder.translation_task import TextToText as TextToText
from fourfold.models.encoder_decoder.translation_task import Translation as Translation
from fourfold.models.masked_lm.question_answering_task import QuestionAnswering as QuestionAnswering
from fourfold.models.masked_lm.sequence_classification_task import (
    SequenceClassification as SequenceClassification,
)
from fourfold.models.masked_lm.task import MaskedLanguageModeling as MaskedLanguageModeling
from fourfold.models.masked_lm.token_classification_task import (
    TokenClassification as TokenClassification,
)
from fourfold.models.recurrent.task import DocumentClassification as DocumentClassification
from fourfold.models.recurrent.task import RecurrentCaptioning as RecurrentCaptioning
from fourfold.models.recurrent.task import RecurrentLanguageModeling as RecurrentLanguageModeling
from fourfold.models.recurrent.task import (
    RecurrentSequenceClassification as RecurrentSequenceClassification,
)
from fourfold.models.recurrent.task import RecurrentTranslation as RecurrentTranslation
from fourfold.models.vit.masked_image_task import MaskedImageModeling as MaskedImageModeling
from fourfold.models.vit.segmentation_task import SemanticSegmentation as SemanticSegmentation
from fourfold.models.vit.task import ImageClassification as ImageClassification
from fourfold.training.loading import load_task as load_task
from fourfold.training.task import Task as Task

def __getattr__(name: str) -> Any: ...
