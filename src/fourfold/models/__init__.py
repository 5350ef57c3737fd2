"""Model classes and configs: the four transformer families, their heads, and the baselines."""

from fourfold.models.base import Model
from fourfold.models.baselines.lstm import (
    RecurrentClassifier,
    RecurrentClassifierConfig,
    RecurrentLM,
    RecurrentLMConfig,
)
from fourfold.models.baselines.resnet import ResNet, ResNetConfig
from fourfold.models.causal_lm import CausalLM, CausalLMConfig
from fourfold.models.classifiers import (
    CausalClassifier,
    CausalClassifierConfig,
    SequenceClassifier,
    SequenceClassifierConfig,
    SpanExtractor,
    SpanExtractorConfig,
    TokenClassifier,
    TokenClassifierConfig,
)
from fourfold.models.clip import CLIP, CLIPConfig
from fourfold.models.composite import CompositeEncoderDecoder, ImageToTextConfig, TextToTextConfig
from fourfold.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from fourfold.models.masked_lm import MaskedLM, MaskedLMConfig
from fourfold.models.registry import create, list_models
from fourfold.models.t5 import T5, T5Config
from fourfold.models.vit import ViT, ViTConfig

__all__ = [
    "CLIP",
    "T5",
    "CLIPConfig",
    "CausalClassifier",
    "CausalClassifierConfig",
    "CausalLM",
    "CausalLMConfig",
    "CompositeEncoderDecoder",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "ImageToTextConfig",
    "MaskedLM",
    "MaskedLMConfig",
    "Model",
    "RecurrentClassifier",
    "RecurrentClassifierConfig",
    "RecurrentLM",
    "RecurrentLMConfig",
    "ResNet",
    "ResNetConfig",
    "SequenceClassifier",
    "SequenceClassifierConfig",
    "SpanExtractor",
    "SpanExtractorConfig",
    "T5Config",
    "TextToTextConfig",
    "TokenClassifier",
    "TokenClassifierConfig",
    "ViT",
    "ViTConfig",
    "create",
    "list_models",
]
