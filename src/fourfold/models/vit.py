"""The Vision Transformer: ViT (Dosovitskiy et al. 2020) and DeiT (Touvron et al. 2020).

Shapes: B batch, C channels, N patches with prefix tokens, D model width, K classes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import init

from fourfold.core.config import TransformerConfig, check_positive, check_word
from fourfold.core.embeddings import PatchEmbedding
from fourfold.core.errors import InputError
from fourfold.core.init import INITS, initialise, vaswani
from fourfold.core.positions import POSITIONS
from fourfold.core.stack import FeedForward, Stack
from fourfold.models.patch_positions import PLACES, PatchStack


@dataclass(frozen=True)
class ViTConfig(TransformerConfig):
    """A Vision Transformer; the defaults are ViT-B/16 at 224 (86,567,656 parameters).

    Args:
        image_size: Side of the square image in pixels.
        patch_size: Side of a patch in pixels.
        n_channels: C.
        n_classes: K; None in a run's config means: the data's.
        pool: What is classified: cls (the class token) or mean (of the patches; Beyer 2022).
        distillation: Whether to add DeiT's distillation token and its head.
        positions: none, learned, learned2d (a vector for each row and column), sincos2d, or
            relative (a number for each head and distance, the same in all layers; the paper's are
            asked by each layer's queries, for which the block has no seam).
        positions_at: Where learned ones are added: at the stem, or in all layers, each with its own
            (layers) or all with the same (layers_shared); the paper's Table 8.
        representation_size: Width of a tanh layer before the classifier (the paper's
            pre-training head); None for none.
        init: A row of INITS.
    """

    d_model: int = 768
    n_layers: int = 12
    n_heads: int = 12
    d_ff: int = 3072
    activation: str = "gelu"
    norm_placement: str = "pre"
    dropout: float = 0.0
    image_size: int = 224
    patch_size: int = 16
    n_channels: int = 3
    n_classes: int | None = 1000
    pool: str = "cls"
    distillation: bool = False
    positions: str = "learned"
    positions_at: str = "stem"
    representation_size: int | None = None
    init: str = "vit"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_word("pool", self.pool, ("cls", "mean"))
        check_word("positions", self.positions, (*POSITIONS, "relative"))
        check_word("positions_at", self.positions_at, PLACES)
        if self.positions_at != "stem" and self.positions not in ("learned", "learned2d"):
            raise InputError(
                f"positions_at {self.positions_at} is for learned positions, not {self.positions}"
            )
        for field in ("image_size", "patch_size", "n_channels", "n_classes", "representation_size"):
            check_positive(field, getattr(self, field))
        if self.distillation and self.pool != "cls":
            raise InputError("distillation needs pool cls: its token stands beside a class token")


class ViT(nn.Module):
    """Classifies an image read as a sequence of patches."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        assert config.n_classes is not None, "the classes are known once a model is built"
        self.config = config
        self.n_prefix = (config.pool == "cls") + config.distillation
        inside = config.positions == "relative" or config.positions_at != "stem"
        self.embed = PatchEmbedding(
            config,
            config.image_size,
            config.patch_size,
            config.n_channels,
            "none" if inside else config.positions,
            n_prefix=self.n_prefix,
        )
        self.stack = self._positioned() if inside else Stack(config)
        hidden, width = config.representation_size, config.d_model
        self.representation = nn.Linear(width, hidden) if hidden else None
        self.heads = nn.ModuleList(
            nn.Linear(hidden or width, config.n_classes) for _ in range(1 + config.distillation)
        )
        initialise(self, config.init)
        if isinstance(self.stack, PatchStack):
            self.stack.first_positions()

    def _positioned(self) -> PatchStack:
        config = self.config
        length = (config.image_size // config.patch_size) ** 2 + self.n_prefix
        shared = config.positions_at == "layers_shared"
        return PatchStack(config, config.positions, shared=shared, length=length)

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, C, side, side) to logits (B, K); the mean of both heads if there are two.

        Raises:
            InputError: Images of another size than the config's.
        """
        return torch.stack(self.logits(self.encode(images))).mean(0)

    def encode(self, images: Tensor) -> Tensor:
        """Final hidden states (B, prefix + N, D)."""
        return self.stack(self.embed(images))

    def logits(self, h: Tensor) -> list[Tensor]:
        """Hidden states to (B, K) of each head: class token or mean, then distillation token."""
        pooled = [h[:, i] for i in range(self.n_prefix)] or [h.mean(1)]
        if self.representation is not None:
            pooled = [self.representation(p).tanh() for p in pooled]
        return [head(p) for head, p in zip(self.heads, pooled, strict=True)]


def first_weights(model: nn.Module) -> None:
    """Glorot uniform matrices, N(0, 1e-6) feed-forward biases, N(0, 0.02) positions.

    Patches are Lecun normal, the classifier starts at 0 (google-research/vision_transformer).
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
            if module.prefix is not None:
                init.zeros_(module.prefix)
    for name, parameter in model.named_parameters():
        if name.startswith("heads."):
            init.zeros_(parameter)


INITS["vit"] = first_weights  # the row of a paper stands where its model does
