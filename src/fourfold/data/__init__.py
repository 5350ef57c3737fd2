"""Data: batches, tokenizers, sources and DataModules."""

from fourfold.data.images import ImageData
from fourfold.data.masked_text import MaskedTextData
from fourfold.data.text import CausalTextData
from fourfold.data.translation import TranslationData

__all__ = ["CausalTextData", "ImageData", "MaskedTextData", "TranslationData"]
