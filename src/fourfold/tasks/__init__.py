"""Tasks: LightningModules that train and evaluate a model."""

# The form `import X as X` exports a name to type checkers, as `__all__` does.
from fourfold.tasks.base import Task as Task
from fourfold.tasks.baselines import ConvolutionalClassification as ConvolutionalClassification
from fourfold.tasks.baselines import ConvolutionalLanguageModeling as ConvolutionalLanguageModeling
from fourfold.tasks.baselines import LadderLanguageModeling as LadderLanguageModeling
from fourfold.tasks.baselines import LadderSequenceClassification as LadderSequenceClassification
from fourfold.tasks.baselines import RecurrentLanguageModeling as RecurrentLanguageModeling
from fourfold.tasks.baselines import (
    RecurrentSequenceClassification as RecurrentSequenceClassification,
)
from fourfold.tasks.captioning import Captioning as Captioning
from fourfold.tasks.captioning import RecurrentCaptioning as RecurrentCaptioning
from fourfold.tasks.causal_lm import CausalLanguageModeling as CausalLanguageModeling
from fourfold.tasks.contrastive import ContrastiveLearning as ContrastiveLearning
from fourfold.tasks.contrastive import SigmoidContrastiveLearning as SigmoidContrastiveLearning
from fourfold.tasks.image_classification import ImageClassification as ImageClassification
from fourfold.tasks.loading import load_task as load_task
from fourfold.tasks.masked_images import MaskedImageModeling as MaskedImageModeling
from fourfold.tasks.masked_lm import MaskedLanguageModeling as MaskedLanguageModeling
from fourfold.tasks.question_answering import QuestionAnswering as QuestionAnswering
from fourfold.tasks.sequence_classification import (
    CausalSequenceClassification as CausalSequenceClassification,
)
from fourfold.tasks.sequence_classification import DocumentClassification as DocumentClassification
from fourfold.tasks.sequence_classification import SequenceClassification as SequenceClassification
from fourfold.tasks.token_classification import TokenClassification as TokenClassification
from fourfold.tasks.translation import CompositeTranslation as CompositeTranslation
from fourfold.tasks.translation import RecurrentTranslation as RecurrentTranslation
from fourfold.tasks.translation import TextToText as TextToText
from fourfold.tasks.translation import Translation as Translation
