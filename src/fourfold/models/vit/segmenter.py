"""Vision Transformer with a linear head on the patches, for semantic segmentation.

Shapes: B images, C channels, D model width, K classes.
"""

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor, nn

from fourfold.models.vit.model import ViT, ViTConfig


@dataclass(frozen=True)
class SegmenterConfig(ViTConfig):
    """Config of a ViT that classifies each patch, without `representation_size` and `pool_norm`.

    Source: Oquab et al. 2023 (DINOv2), section 7.4.

    Args:
        pool: cls and cls_mean have a class token, as the model whose weights initialize this one.
        head_norm: Norm before the linear head: batch (DINOv2) or none. With batch, a step depends
            on the division of the batch into micro-batches, as in every batch norm.
    """

    head_norm: Literal["batch", "none"] = "batch"


class Segmenter(ViT):
    """ViT with a linear head on each patch, as in the linear evaluation of DINOv2.

    Source: Oquab et al. 2023, section 7.4. A call of the model takes images (B, C, height, width)
    and returns the logits (B, K, rows, columns) of the patches, which `SemanticSegmentation`
    interpolates to the pixels. The parameters below the head have the names of those of `ViT`.
    """

    def __init__(self, config: SegmenterConfig) -> None:
        super().__init__(replace(config, representation_size=None, pool_norm=False), n_heads=0)
        assert config.n_classes is not None, "n_classes must be known when a model is built"
        self.config = config
        norm = nn.BatchNorm2d(config.d_model) if config.head_norm == "batch" else nn.Identity()
        linear = nn.Conv2d(config.d_model, config.n_classes, 1)
        nn.init.normal_(linear.weight, std=0.01)
        nn.init.zeros_(linear.get_parameter("bias"))
        self.head = nn.Sequential(norm, linear)

    def logits(self, h: Tensor) -> Tensor:
        """Map hidden states (B, prefix + N, D) to the logits (B, K, rows, columns) of patches."""
        return self.head(h[:, self.n_prefix :].mT.unflatten(2, self.embed.grid))
