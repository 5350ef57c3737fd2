"""The four families, each a specialisation of the same block."""

from fourfold.models.causal_lm import CausalLM, CausalLMConfig
from fourfold.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from fourfold.models.masked_lm import MaskedLM, MaskedLMConfig
from fourfold.models.vit import ViT, ViTConfig

__all__ = [
    "CausalLM",
    "CausalLMConfig",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "MaskedLM",
    "MaskedLMConfig",
    "ViT",
    "ViTConfig",
]
