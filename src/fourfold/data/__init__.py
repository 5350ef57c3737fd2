"""Data: batches, tokenizers, sources and DataModules."""

from fourfold.data.captions import CaptionData
from fourfold.data.glue import GlueData
from fourfold.data.images import ImageData
from fourfold.data.masked_text import MaskedTextData
from fourfold.data.question_answering import QuestionData
from fourfold.data.sequence_classification import SequenceData
from fourfold.data.streamed import StreamedTextData
from fourfold.data.streamed_masked import StreamedMaskedData
from fourfold.data.text import CausalTextData
from fourfold.data.token_classification import TokenData
from fourfold.data.translation import TranslationData
from fourfold.data.trec import TrecData

__all__ = [
    "CaptionData",
    "CausalTextData",
    "GlueData",
    "ImageData",
    "MaskedTextData",
    "QuestionData",
    "SequenceData",
    "StreamedMaskedData",
    "StreamedTextData",
    "TokenData",
    "TranslationData",
    "TrecData",
]
