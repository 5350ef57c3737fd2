"""Patch embedding of images, and token embedding with positions and segments.

Shapes: B batch, T tokens, D model width, C channels, N patches.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fourfold.core.positions import POSITIONS, PositionTable
from fourfold.core.validation import check_choice
from fourfold.errors import InputError
from fourfold.kernels.dropout import Dropout


def make_positions(
    positions: str | Callable[[int, int], PositionTable], n_rows: int, d_model: int
) -> PositionTable | None:
    """Build a table of N position vectors, or return None for "none".

    Args:
        positions: A row of `POSITIONS`, or a function from (N, D) to a table.
        n_rows: N.
        d_model: D.
    """
    if isinstance(positions, str):
        check_choice("positions", positions, tuple(POSITIONS))
        build = POSITIONS[positions]
    else:
        build = positions
    return None if build is None else build(n_rows, d_model)


class TokenEmbedding(nn.Module):
    """Token embedding: sum of token, position and segment vectors, optional norm, and dropout.

    Args:
        vocab_size: V.
        d_model: D.
        max_len: Number of positions.
        positions: A row of `POSITIONS`.
        n_segments: Number of segment vectors (BERT's sentences A and B); 0 for none.
        scale: Multiply token vectors by sqrt(D) (Vaswani et al. 2017, section 3.4).
        norm: Module applied to the sum (BERT), or None.
        dropout: Dropout probability of the result.

    Raises:
        InputError: `positions` is not a row of `POSITIONS`.

    Example:
        >>> embed = TokenEmbedding(100, 16, max_len=32, positions="sinusoidal")
        >>> embed(torch.tensor([[1, 2, 3]]), slice(0, 3)).shape
        torch.Size([1, 3, 16])
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        *,
        max_len: int,
        positions: str = "learned",
        n_segments: int = 0,
        scale: bool = False,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.positions = make_positions(positions, max_len, d_model)
        self.segments = nn.Embedding(n_segments, d_model) if n_segments else None
        self.scale = d_model**0.5 if scale else 1.0
        self.norm = norm or nn.Identity()
        self.dropout = Dropout(dropout)

    def forward(
        self, ids: Tensor, positions: Tensor | slice, segments: Tensor | None = None
    ) -> Tensor:
        """Embed tokens.

        Args:
            ids: (B, T) int64.
            positions: Positions of the tokens, a slice of length T or (B, T).
            segments: (B, T) int64; None means 0.

        Returns:
            (B, T, D).
        """
        x = self.tokens(ids)  # (B, T, D)
        if self.scale != 1.0:
            x = x * self.scale
        if self.positions is not None:
            x = x + self.positions(positions)
        if self.segments is not None:
            x = x + self.segments(torch.zeros_like(ids) if segments is None else segments)
        return self.dropout(self.norm(x))

    def share_tokens(self, owner: "TokenEmbedding") -> None:
        """Use the token vectors of `owner`; only the state dict of `owner` contains the vectors."""
        del self.tokens
        # Assigning an nn.Module the usual way would register it here, too.
        object.__setattr__(self, "tokens", owner.tokens)


def check_image_shape(images: Tensor, n_channels: int, side: int) -> None:
    """Raise InputError unless `images` has the shape (B, n_channels, side, side)."""
    if images.dim() != 4 or tuple(images.shape[1:]) != (n_channels, side, side):
        raise InputError(
            f"must have the shape (B, {n_channels}, {side}, {side}), got {tuple(images.shape)}",
            option="images",
        )


class PatchEmbedding(nn.Module):
    """Patch embedding of images, with learned prefix tokens (Dosovitskiy et al. 2020, eq. 1).

    Args:
        image_size: Side of the square image in pixels.
        patch_size: Side of a patch in pixels.
        n_channels: C.
        d_model: D.
        positions: A row of `POSITIONS`, or a function from (N, D) to a `PositionTable`.
        n_prefix: Number of learned tokens before the patches: 1 for a class token, 2 with DeiT's
            distillation token.
        dropout: Dropout probability of the result.

    Raises:
        InputError: `image_size` is not divisible by `patch_size`, or `positions` is not a row
            of `POSITIONS`.

    Example:
        >>> embed = PatchEmbedding(32, 8, 3, 16)
        >>> embed(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 17, 16])
    """

    def __init__(
        self,
        image_size: int,
        patch_size: int,
        n_channels: int,
        d_model: int,
        *,
        positions: str | Callable[[int, int], PositionTable] = "learned",
        n_prefix: int = 1,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if image_size % patch_size:
            raise InputError(
                f"must be divisible by patch_size ({patch_size}), got {image_size}",
                option="image_size",
            )
        self.image_size = image_size
        self.n_channels = n_channels
        self.patches = nn.Conv2d(n_channels, d_model, patch_size, stride=patch_size)
        n_patches = (image_size // patch_size) ** 2
        # A sinusoidal grid has no row for prefix tokens, so they get no position (big_vision).
        self.prefix_has_position = positions != "sincos2d"
        rows = n_patches + n_prefix * self.prefix_has_position
        self.positions = make_positions(positions, rows, d_model)
        self.prefix = nn.Parameter(torch.zeros(n_prefix, d_model)) if n_prefix else None
        self.dropout = Dropout(dropout)

    def forward(self, images: Tensor) -> Tensor:
        """Embed images.

        Shapes:
            images (B, C, image_size, image_size) to (B, n_prefix + N, D).

        Raises:
            InputError: The images have another size or number of channels than the model.
        """
        check_image_shape(images, self.n_channels, self.image_size)
        # Under autocast the convolution runs in low precision; the residual stream stays in fp32.
        x = self.patches(images).to(self.patches.weight.dtype).flatten(2).mT  # (B, N, D)
        if self.positions is not None and not self.prefix_has_position:
            x = x + self.positions.weight
        if self.prefix is not None:
            x = torch.cat([self.prefix.expand(len(x), -1, -1), x], dim=1)
        if self.positions is not None and self.prefix_has_position:
            x = x + self.positions.weight
        return self.dropout(x)
