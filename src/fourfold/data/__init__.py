"""DataModules for text and images. A class is imported when it is first accessed."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fourfold.data.text.causal_lm import CausalTextData as CausalTextData
    from fourfold.data.text.document_classification import DocumentData as DocumentData
    from fourfold.data.text.glue import GlueData as GlueData
    from fourfold.data.text.masked_lm import MaskedTextData as MaskedTextData
    from fourfold.data.text.masked_lm import SpanCorruptionData as SpanCorruptionData
    from fourfold.data.text.question_answering import QuestionData as QuestionData
    from fourfold.data.text.sequence_classification import SequenceData as SequenceData
    from fourfold.data.text.sequence_classification import TrecData as TrecData
    from fourfold.data.text.synthetic_sequences import RecallData as RecallData
    from fourfold.data.text.synthetic_sequences import (
        SyntheticSequenceData as SyntheticSequenceData,
    )
    from fourfold.data.text.token_classification import TokenData as TokenData
    from fourfold.data.text.translation import TranslationData as TranslationData
    from fourfold.data.vision.captioning import CaptionData as CaptionData
    from fourfold.data.vision.image_classification import ImageData as ImageData
    from fourfold.data.vision.masked_images import MaskedImageData as MaskedImageData
    from fourfold.data.vision.segmentation import SegmentationData as SegmentationData

_MODULES = {
    "CaptionData": "vision.captioning",
    "CausalTextData": "text.causal_lm",
    "DocumentData": "text.document_classification",
    "GlueData": "text.glue",
    "ImageData": "vision.image_classification",
    "MaskedImageData": "vision.masked_images",
    "MaskedTextData": "text.masked_lm",
    "QuestionData": "text.question_answering",
    "RecallData": "text.synthetic_sequences",
    "SegmentationData": "vision.segmentation",
    "SequenceData": "text.sequence_classification",
    "SpanCorruptionData": "text.masked_lm",
    "SyntheticSequenceData": "text.synthetic_sequences",
    "TokenData": "text.token_classification",
    "TranslationData": "text.translation",
    "TrecData": "text.sequence_classification",
}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'fourfold.data' has no attribute {name!r}")
    return getattr(import_module(f"fourfold.data.{_MODULES[name]}"), name)
