"""The four families, each a specialisation of the same block, their heads, and a rival."""

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
from fourfold.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from fourfold.models.joined import CaptionerConfig, Joined, JoinedConfig
from fourfold.models.masked_lm import MaskedLM, MaskedLMConfig
from fourfold.models.recurrent import (
    RecurrentClassifier,
    RecurrentClassifierConfig,
    RecurrentLM,
    RecurrentLMConfig,
)
from fourfold.models.resnet import ResNet, ResNetConfig
from fourfold.models.t5 import T5, T5Config
from fourfold.models.vit import ViT, ViTConfig

__all__ = [
    "CLIP",
    "T5",
    "CLIPConfig",
    "CaptionerConfig",
    "CausalClassifier",
    "CausalClassifierConfig",
    "CausalLM",
    "CausalLMConfig",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "Joined",
    "JoinedConfig",
    "MaskedLM",
    "MaskedLMConfig",
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
    "TokenClassifier",
    "TokenClassifierConfig",
    "ViT",
    "ViTConfig",
]
