"""Data: batches, tokenizers, sources and DataModules."""

from fourfold.data.images import ImageData
from fourfold.data.translation import TranslationData

__all__ = ["ImageData", "TranslationData"]
