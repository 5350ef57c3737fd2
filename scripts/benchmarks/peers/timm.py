"""timm as a benchmark peer: VisionTransformer with the cross-entropy of timm's training script."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from scripts.benchmarks.contenders import Contender
from scripts.benchmarks.workloads import Shape


def vit(shape: Shape, dropout: float) -> Contender:
    """Build the class that `create_model("vit_...")` creates."""
    from timm.models.vision_transformer import VisionTransformer

    model = VisionTransformer(
        img_size=shape.length,
        patch_size=shape.patch_size,
        num_classes=shape.n_out,
        embed_dim=shape.d_model,
        depth=shape.n_layers,
        num_heads=shape.n_heads,
        pos_drop_rate=dropout,
        proj_drop_rate=dropout,
        attn_drop_rate=dropout,
    )
    return Contender(model, _loss)


def _loss(model: Any, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch.images), batch.labels)


FAMILIES = {"vit": vit}
