"""Model registry: published architectures by name, and functions that build and list them.

The names are those of timm, transformers, torchvision and tensor2tensor. A name selects the
architecture and the dropout rates of the paper that introduced the model. `create` builds a model
with random weights, and `fourfold.load` reads trained weights.
"""

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, get_args

from fourfold.core.config import ModelConfig
from fourfold.core.validation import check_choice
from fourfold.layers.base_model import Model
from fourfold.models.baselines.resnet import Depth, ResNet, ResNetConfig
from fourfold.models.causal_lm.model import CausalLM, CausalLMConfig
from fourfold.models.contrastive.clip import CLIP, CLIPConfig
from fourfold.models.contrastive.siglip import SigLIP, SigLIPConfig
from fourfold.models.encoder_decoder.model import EncoderDecoder, EncoderDecoderConfig
from fourfold.models.encoder_decoder.t5 import T5, T5Config
from fourfold.models.masked_lm.model import MaskedLM, MaskedLMConfig
from fourfold.models.vit.model import ViT, ViTConfig

TINY: dict[str, Any] = {"d_model": 192, "n_layers": 12, "n_heads": 3, "d_ff": 768}
SMALL: dict[str, Any] = {"d_model": 384, "n_layers": 12, "n_heads": 6, "d_ff": 1536}
BASE: dict[str, Any] = {"d_model": 768, "n_layers": 12, "n_heads": 12, "d_ff": 3072}
LARGE: dict[str, Any] = {"d_model": 1024, "n_layers": 24, "n_heads": 16, "d_ff": 4096}
HUGE: dict[str, Any] = {"d_model": 1280, "n_layers": 32, "n_heads": 16, "d_ff": 5120}
# Dosovitskiy et al. 2020, Table 3; Touvron et al. 2020, Table 9.
VIT: dict[str, Any] = {"dropout": 0.1, "ff_dropout": 0.1}
DEIT: dict[str, Any] = {"drop_path": 0.1, "init": "bert"}
GPT2: dict[str, Any] = {"dropout": 0.0, "attn_dropout": 0.0}
ROBERTA: dict[str, Any] = {
    "vocab_size": 50265,
    "max_len": 514,  # 512 positions; the released weights count them from 2
    "n_segments": 1,
    "norm_eps": 1e-5,
}

CLASSES: dict[type[ModelConfig], type[Model]] = {
    CLIPConfig: CLIP,
    CausalLMConfig: CausalLM,
    SigLIPConfig: SigLIP,
    EncoderDecoderConfig: EncoderDecoder,
    MaskedLMConfig: MaskedLM,
    ResNetConfig: ResNet,
    T5Config: T5,
    ViTConfig: ViT,
}

MODELS: dict[str, ModelConfig] = {
    "vit_tiny_patch16_224": ViTConfig(**TINY, **VIT),
    "vit_small_patch16_224": ViTConfig(**SMALL, **VIT),
    "vit_base_patch16_224": ViTConfig(**BASE, **VIT),
    "vit_base_patch32_224": ViTConfig(**BASE, **VIT, patch_size=32),
    "vit_large_patch16_224": ViTConfig(**LARGE, **VIT),
    "vit_large_patch32_224": ViTConfig(**LARGE, **VIT, patch_size=32),
    "vit_huge_patch14_224": ViTConfig(**HUGE, **VIT, patch_size=14),
    "deit_tiny_patch16_224": ViTConfig(**TINY, **DEIT),
    "deit_small_patch16_224": ViTConfig(**SMALL, **DEIT),
    "deit_base_patch16_224": ViTConfig(**BASE, **DEIT),
    "deit_tiny_distilled_patch16_224": ViTConfig(**TINY, **DEIT, distillation=True),
    "deit_small_distilled_patch16_224": ViTConfig(**SMALL, **DEIT, distillation=True),
    "deit_base_distilled_patch16_224": ViTConfig(**BASE, **DEIT, distillation=True),
    "openai-gpt": CausalLMConfig(
        **BASE, norm_placement="post", vocab_size=40478, max_len=512, init="gpt"
    ),
    "gpt2": CausalLMConfig(**BASE, **GPT2),
    "gpt2-medium": CausalLMConfig(**LARGE, **GPT2),
    "gpt2-large": CausalLMConfig(d_model=1280, n_layers=36, n_heads=20, d_ff=5120, **GPT2),
    "gpt2-xl": CausalLMConfig(d_model=1600, n_layers=48, n_heads=25, d_ff=6400, **GPT2),
    "bert-base-uncased": MaskedLMConfig(**BASE, next_sentence=True),
    "bert-base-cased": MaskedLMConfig(**BASE, vocab_size=28996, next_sentence=True),
    "bert-large-uncased": MaskedLMConfig(**LARGE, next_sentence=True),
    "bert-large-cased": MaskedLMConfig(**LARGE, vocab_size=28996, next_sentence=True),
    "roberta-base": MaskedLMConfig(**BASE, **ROBERTA),
    "roberta-large": MaskedLMConfig(**LARGE, **ROBERTA),
    "distilbert-base-uncased": MaskedLMConfig(**{**BASE, "n_layers": 6}, n_segments=0),
    "transformer_base": EncoderDecoderConfig(),
    "transformer_big": EncoderDecoderConfig(d_model=1024, n_heads=16, d_ff=4096, dropout=0.3),
    "t5-small": T5Config(),
    "t5-base": T5Config(**BASE),
    "t5-large": T5Config(**LARGE),
    "siglip-base-patch16-224": SigLIPConfig(),
    "clip-vit-base-patch32": CLIPConfig(),
    "clip-vit-base-patch16": CLIPConfig(patch_size=16),
    "clip-vit-large-patch14": CLIPConfig(
        **BASE,
        **{f"image_{name}": value for name, value in LARGE.items()},
        patch_size=14,
        d_embed=768,
    ),
    **{f"resnet{depth}": ResNetConfig(depth=depth) for depth in get_args(Depth)},
}


def create(name: str, **overrides: Any) -> Model:
    """Build a model with random weights from the name of an architecture.

    Args:
        name: One of the names that `list_models` returns, such as "gpt2-medium".
        overrides: Values of config fields that replace those of the architecture, such as
            n_classes=10.

    Raises:
        InputError: `name` or a field is unknown, or a field has a value outside its choices or its
            range.

    Example:
        >>> import torch
        >>> model = create("vit_tiny_patch16_224", n_classes=10, n_layers=2)
        >>> model(torch.zeros(1, 3, 224, 224)).shape
        torch.Size([1, 10])
    """
    check_choice("name", name, list_models())
    config = MODELS[name]
    for field in overrides:
        check_choice(f"field of {type(config).__name__}", field, list(vars(config)))
    return CLASSES[type(config)](replace(config, **overrides))


def list_models(pattern: str = "*") -> list[str]:
    """Return the names that `create` accepts, sorted.

    Args:
        pattern: Shell pattern, as in timm; only names that match it are returned.

    Example:
        >>> list_models("gpt2*")
        ['gpt2', 'gpt2-large', 'gpt2-medium', 'gpt2-xl']
    """
    return sorted(name for name in MODELS if fnmatchcase(name, pattern))
