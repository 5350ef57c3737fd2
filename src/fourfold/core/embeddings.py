"""What enters the stack: tokens with positions and segments, or patches of an image.

Shapes: B batch, T tokens, D model width, C channels, N patches.
"""

import torch
from torch import Tensor, nn

from fourfold.core.config import TransformerConfig, check_word
from fourfold.core.errors import InputError
from fourfold.core.positions import POSITIONS, PositionTable
from fourfold.core.stack import make_norm
from fourfold.kernels.dropout import Dropout


def make_positions(kind: str, n_rows: int, width: int) -> PositionTable | None:
    """The row `kind` of the table POSITIONS, built; None for "none"."""
    check_word("positions", kind, tuple(POSITIONS))
    build = POSITIONS[kind]
    return None if build is None else build(n_rows, width)


class TokenEmbedding(nn.Module):
    """Sum of token, position and segment vectors, then optional norm, then dropout.

    Args:
        config: Width, norm and dropout.
        vocab_size: Number of rows V.
        max_len: Number of positions.
        positions: A row of POSITIONS.
        n_segments: Number of segment vectors (BERT's sentence A and B); 0 for none.
        scale: Multiply token vectors by sqrt(D) (Vaswani 3.4).
        norm: Normalise the sum (BERT).
    """

    def __init__(
        self,
        config: TransformerConfig,
        vocab_size: int,
        max_len: int,
        positions: str,
        *,
        n_segments: int = 0,
        scale: bool = False,
        norm: bool = False,
    ) -> None:
        super().__init__()
        width = config.d_model
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = make_positions(positions, max_len, width)
        self.segments = nn.Embedding(n_segments, width) if n_segments else None
        self.scale = width**0.5 if scale else 1.0
        self.norm = make_norm(config) if norm else nn.Identity()
        self.dropout = Dropout(config.dropout)

    def forward(
        self, ids: Tensor, positions: Tensor | slice, segments: Tensor | None = None
    ) -> Tensor:
        """ids (B, T), positions a slice or (B, T), segments (B, T) or None = 0; to (B, T, D)."""
        x = self.tokens(ids)  # (B, T, D)
        if self.scale != 1.0:
            x = x * self.scale
        if self.positions is not None:
            x = x + self.positions(positions)
        if self.segments is not None:
            x = x + self.segments(torch.zeros_like(ids) if segments is None else segments)
        return self.dropout(self.norm(x))

    def share_tokens(self, owner: "TokenEmbedding") -> None:
        """Use the token vectors of `owner`, which alone has them in its state dict."""
        del self.tokens
        object.__setattr__(self, "tokens", owner.tokens)  # past the registration of modules


class PatchEmbedding(nn.Module):
    """An image as a sequence of projected patches (Dosovitskiy et al. 2020, eq. 1).

    Args:
        config: Width and dropout.
        image_size: Side of the square image in pixels.
        patch_size: Side of a patch in pixels.
        n_channels: C.
        positions: A row of POSITIONS.
        n_prefix: Learned tokens in front: 1 class token, 2 with DeiT's distillation token.
    """

    def __init__(
        self,
        config: TransformerConfig,
        image_size: int,
        patch_size: int,
        n_channels: int,
        positions: str,
        *,
        n_prefix: int = 1,
    ) -> None:
        super().__init__()
        if image_size % patch_size:
            raise InputError(f"image_size {image_size} is not divisible by patch_size {patch_size}")
        self.image_size, self.n_channels = image_size, n_channels
        self.patches = nn.Conv2d(n_channels, config.d_model, patch_size, stride=patch_size)
        n_patches = (image_size // patch_size) ** 2
        # A grid of waves has no place for tokens in front: they get no position (big_vision).
        self.prefix_has_position = positions != "sincos2d"
        rows = n_patches + n_prefix * self.prefix_has_position
        self.positions = make_positions(positions, rows, config.d_model)
        self.prefix = nn.Parameter(torch.zeros(n_prefix, config.d_model)) if n_prefix else None
        self.dropout = Dropout(config.dropout)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, side, side) to (B, prefix + N, D).

        Raises:
            InputError: The images are not of the size or channels the model is built for.
        """
        want = (self.n_channels, self.image_size, self.image_size)
        if tuple(images.shape[1:]) != want:
            raise InputError(f"images are {tuple(images.shape[1:])}, but the model takes {want}")
        # Under autocast the convolution is in low precision, the residual stream never.
        x = self.patches(images).to(self.patches.weight.dtype).flatten(2).mT  # (B, N, D)
        if self.positions is not None and not self.prefix_has_position:
            x = x + self.positions.weight
        if self.prefix is not None:
            x = torch.cat([self.prefix.expand(len(x), -1, -1), x], dim=1)
        if self.positions is not None and self.prefix_has_position:
            x = x + self.positions.weight
        return self.dropout(x)
