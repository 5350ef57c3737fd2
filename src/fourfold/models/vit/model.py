"""Vision Transformer: ViT (Dosovitskiy et al. 2020) and DeiT (Touvron et al. 2020).

Shapes: B batch, C channels, N patches, D model width, K classes. Prefix tokens are the class token,
DeiT's distillation token, and registers.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import init

from fourfold.core.attention import Attention
from fourfold.core.block import Stack, norm_from_config
from fourfold.core.config import Activation, Init, NormPlacement
from fourfold.core.feed_forward import FeedForward
from fourfold.core.masks import Mask
from fourfold.core.validation import ImageSize
from fourfold.errors import InputError
from fourfold.layers.base_model import BaseSizeConfig, Model, patches_from_config
from fourfold.layers.heads import ClassHead
from fourfold.layers.image_positions import (
    IN_STACK,
    AxialRotaryStack,
    PositionedStack,
    ViTPositions,
)
from fourfold.layers.init import INITS, initialize, vaswani
from fourfold.layers.patch_embedding import PatchEmbedding, convolutional_stem


@dataclass(frozen=True)
class PatchConfig(BaseSizeConfig):
    """Config of the encoder of an image, which is divided into patches; by default ViT-B/16.

    Args:
        image_size: Height and width of the image in pixels, or the side of a square image.
        patch_size: Side of a patch in pixels.
        n_channels: Number of channels C.
    """

    activation: Activation = "gelu"
    norm_placement: NormPlacement = "pre"
    dropout: float = 0.0
    image_size: ImageSize = 224
    patch_size: int = 16
    n_channels: int = 3


@dataclass(frozen=True)
class ViTConfig(PatchConfig):
    """Config of a Vision Transformer; the defaults are ViT-B/16 at 224 (86,567,656 parameters).

    Args:
        n_classes: Number of classes K. None takes that of the data.
        pool: Hidden state that is classified: cls (that of the class token), mean (the mean over
            all patches; Beyer et al. 2022) or cls_mean (both, concatenated; DINOv2).
        pool_norm: Normalize the pooled state instead of the hidden states of all tokens (fc_norm of
            MAE and timm).
        embed_norm: Normalize the tokens before the first block; patches then have no bias (CLIP).
        distillation: Add DeiT's distillation token and its head.
        n_registers: Number of learned tokens before the patches, after the class token if there is
            one, that no head reads (Darcet et al. 2023).
        prefix_positions: Tokens before the patches that have a position: all, class (all but the
            registers; DINOv2) or none (DeiT III). Only tables in the stem take it into account.
        positions: none; learned; learned2d (learned vectors of rows and columns); sincos2d (sines
            and cosines of row and column); sincos2d_mae (the same with the wavelengths of MAE);
            sinusoidal (sines and cosines of the position in the sequence, which alternate);
            sinusoidal_halves (the same, all sines before all cosines); relative (a learned bias
            on the attention scores for each head and distance in the sequence, shared by all
            layers), or rotary2d (queries and keys of patches are rotated by row and column, with
            the base `rope_theta`; DINOv3). In Table 8 of Dosovitskiy et al. 2020, the relative
            positions also depend on the query.
        positions_at: Place where learned positions are added: stem (once, after the patch
            embedding), layers (in each layer, from a table of that layer) or layers_shared (in each
            layer, from one table for all layers). Table 8 of Dosovitskiy et al. 2020 compares them.
        key_bias: Learn a bias in the projection to keys, if queries have one. DINOv3 does not.
        patch_embedding: linear (one matrix for the pixels of a patch) or convolutional (3x3
            convolutions with stride 2, then one matrix; Xiao et al. 2021), for which the patch size
            must be a power of 2.
        representation_size: Width of a tanh layer before the classifier, as in the pre-training of
            Dosovitskiy et al. 2020; None for no such layer.
        init: Weight initialization, a name in `fourfold.layers.init.INITS`.
    """

    n_classes: int | None = 1000
    pool: Literal["cls", "mean", "cls_mean"] = "cls"
    pool_norm: bool = False
    embed_norm: bool = False
    distillation: bool = False
    n_registers: int = 0
    prefix_positions: Literal["all", "class", "none"] = "all"
    positions: ViTPositions = "learned"
    positions_at: Literal["stem", "layers", "layers_shared"] = "stem"
    key_bias: bool = True
    patch_embedding: Literal["linear", "convolutional"] = "linear"
    representation_size: int | None = None
    init: Init = "vit"
    ranges: ClassVar = {"n_registers": {"minimum": 0, "maximum": 4096}}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positions_at != "stem" and self.positions not in ("learned", "learned2d"):
            message = f"must be stem for positions {self.positions}, got {self.positions_at}"
            raise InputError(message, option="positions_at")
        if self.distillation and self.pool != "cls":
            message = f"must be cls for a model with distillation, got {self.pool}"
            raise InputError(message, option="pool")
        if self.pool_norm and self.pool == "cls_mean":
            raise InputError("must be false for pool cls_mean, got true", option="pool_norm")
        if self.positions == "rotary2d" and (self.rope_theta is None or self.rotary_width % 4):
            message = f"needs rope_theta and a rotary width divisible by 4, got {self.rotary_width}"
            raise InputError(message, option="positions rotary2d")

    @property
    def n_prefix(self) -> int:
        """Number of tokens before the patches: class and distillation token, and registers."""
        return (self.pool != "mean") + self.distillation + self.n_registers

    @property
    def n_unplaced(self) -> int:
        """Number of tokens before the patches that have no position."""
        return {"all": 0, "class": self.n_registers, "none": self.n_prefix}[self.prefix_positions]


class ViT(Model):
    """Vision Transformer, a classifier of images that are divided into a sequence of patches.

    Source: Dosovitskiy et al. 2020, section 3.1, equations 1 to 4; Touvron et al. 2020 (DeiT). A
    call of the model takes images (B, C, height, width) and returns the logits (B, K).

    Args:
        n_heads: Number of classification heads (not attention heads) to build. None means one head,
            or two with distillation. An imported checkpoint may have fewer heads.
    """

    accepts_images = True

    def __init__(self, config: ViTConfig, *, n_heads: int | None = None) -> None:
        super().__init__()
        self.config = config
        self.n_prefix = config.n_prefix
        positions_in_stack = config.positions in IN_STACK or config.positions_at != "stem"
        sizes = config.patch_size, config.n_channels, config.d_model
        self.embed = patches_from_config(
            config,
            config.d_model,
            positions="none" if positions_in_stack else config.positions,
            n_prefix=self.n_prefix,
            n_unplaced=config.n_unplaced,
            dropout=config.dropout,
            norm=norm_from_config(config) if config.embed_norm else None,
            stem=convolutional_stem(*sizes) if config.patch_embedding == "convolutional" else None,
        )
        grid = self.embed.grid
        if config.positions == "rotary2d":
            self.stack: Stack = AxialRotaryStack(config, grid, self.n_prefix)
        elif positions_in_stack:
            shared = config.positions_at == "layers_shared"
            self.stack = PositionedStack(config, config.positions, grid, self.n_prefix, shared)
        else:
            self.stack = Stack(config)
        for module in self.stack.modules():
            if isinstance(module, Attention) and not config.key_bias:
                module.k.register_parameter("bias", None)
        self.pool_norm: nn.Module = nn.Identity()
        if config.pool_norm:
            self.pool_norm, self.stack.norm = self.stack.norm, self.pool_norm
        n_pooled = 2 if config.pool == "cls_mean" else 1
        width = config.representation_size or n_pooled * config.d_model
        has_layer = bool(config.representation_size)
        self.representation = nn.Linear(n_pooled * config.d_model, width) if has_layer else None
        n_heads = 1 + config.distillation if n_heads is None else n_heads
        self.heads = nn.ModuleList(ClassHead(width, config.n_classes) for _ in range(n_heads))
        initialize(self, config.init, {**INITS, "vit": init_vit})
        if isinstance(self.stack, PositionedStack):
            self.stack.initialize_positions()

    def encode(self, images: Tensor) -> Tensor:
        """Compute the final hidden states (B, prefix + N, D) of prefix tokens and patches."""
        return self.stack(self.embed(images), Mask(n_global=self.n_prefix))

    def logits(self, h: Tensor) -> Tensor:
        """Map hidden states (B, prefix + N, D), as `encode` returns them, to logits (B, K).

        With a distillation token, the result is the mean of the logits of both heads (Touvron et
        al. 2020, section 4).
        """
        return torch.stack(self.logits_per_head(h)).mean(0)

    def logits_per_head(self, h: Tensor) -> list[Tensor]:
        """Map hidden states (B, prefix + N, D) to the logits (B, K) of each classification head.

        The class head reads the class token, the mean of all patches, or both; the distillation
        head, if any, reads the distillation token.
        """
        if self.config.pool == "cls_mean":
            patches = h[:, self.n_prefix :].mean(1)
            pooled = [torch.cat([h[:, 0], patches], dim=-1)]  # (B, 2 D): class token and patches
        elif self.config.pool == "mean":
            pooled = [h[:, self.n_prefix :].mean(1)]
        else:
            pooled = [h[:, i] for i in range(1 + self.config.distillation)]  # class token first
        pooled = [self.pool_norm(p) for p in pooled]
        if self.representation is not None:
            pooled = [self.representation(p).tanh() for p in pooled]
        return [head(p) for head, p in zip(self.heads, pooled, strict=True)]


def init_vit(model: nn.Module) -> None:
    """Initialize the weights of a ViT in place, like google-research/vision_transformer.

    Matrices are drawn by Glorot's rule, and the patch projection by LeCun's rule. The biases of
    feed-forward layers have the standard deviation 1e-6, and learned positions 0.02. All other
    biases, the prefix tokens and the classification heads are 0.
    """
    vaswani(model)
    for module in model.modules():
        if isinstance(module, FeedForward):
            for matrix in (module.up, module.down):
                if matrix.bias is not None:
                    init.normal_(matrix.bias, std=1e-6)
        elif isinstance(module, PatchEmbedding):
            fan_in = module.patches.weight[0].numel()
            init.trunc_normal_(module.patches.weight, std=fan_in**-0.5)
            if module.positions is not None and isinstance(module.positions.weight, nn.Parameter):
                init.normal_(module.positions.weight, std=0.02)
    for parameter in model.get_submodule("heads").parameters():
        init.zeros_(parameter)
