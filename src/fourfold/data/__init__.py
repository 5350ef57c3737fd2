"""DataModules for text and images. A class is imported when it is first accessed."""

from importlib import import_module

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
