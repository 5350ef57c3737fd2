# `lazy_names` of fourfold imports these names when they are first accessed.

from fourfold.data.text.causal_lm import CausalTextData as CausalTextData
from fourfold.data.text.document_classification import DocumentData as DocumentData
from fourfold.data.text.glue import GlueData as GlueData
from fourfold.data.text.masked_lm import MaskedTextData as MaskedTextData
from fourfold.data.text.masked_lm import SpanCorruptionData as SpanCorruptionData
from fourfold.data.text.question_answering import QuestionData as QuestionData
from fourfold.data.text.sequence_classification import SequenceData as SequenceData
from fourfold.data.text.sequence_classification import TrecData as TrecData
from fourfold.data.text.synthetic_sequences import RecallData as RecallData
from fourfold.data.text.synthetic_sequences import SyntheticSequenceData as SyntheticSequenceData
from fourfold.data.text.token_classification import TokenData as TokenData
from fourfold.data.text.translation import TranslationData as TranslationData
from fourfold.data.vision.captioning import CaptionData as CaptionData
from fourfold.data.vision.image_classification import ImageData as ImageData
from fourfold.data.vision.masked_images import MaskedImageData as MaskedImageData
from fourfold.data.vision.segmentation import SegmentationData as SegmentationData

__all__: list[str]
