"""Patch embedding: the patches of an image as tokens, after a class token (ViT, section 3.1).

Shapes: B batch, C channels, D model width, N patches.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fourfold.core.positions import PositionTable, make_positions
from fourfold.errors import InputError
from fourfold.kernels.dropout import Dropout


def check_image_shape(images: Tensor, n_channels: int, side: int) -> None:
    """Raise InputError unless `images` has the shape (B, n_channels, side, side)."""
    shape = tuple(images.shape)
    if len(shape) != 4 or shape[1:] != (n_channels, side, side):
        message = f"must have the shape (B, {n_channels}, {side}, {side}), got {shape}"
        raise InputError(message, option="images")


def convolutional_stem(patch_size: int, n_channels: int, d_model: int) -> nn.Sequential:
    """Build convolutions that reduce each patch to one position (Xiao et al. 2021).

    Each 3x3 convolution halves the side of the image. The last one has D output channels, and each
    earlier one half as many as the next. A GroupNorm of one group and a ReLU follow. The paper has
    a batch norm, with which an optimizer step would depend on the division of the batch.

    Args:
        patch_size: Side of a patch in pixels, a power of 2.
        n_channels: Number of image channels C.
        d_model: Model width D.

    Raises:
        InputError: `patch_size` is not a power of 2 from 2, or `d_model` is not divisible by
            `patch_size` / 2.
    """
    n_layers = patch_size.bit_length() - 1
    if n_layers < 1 or patch_size != 2**n_layers or d_model % 2 ** (n_layers - 1):
        message = "must be a power of 2 for a convolutional stem, and half of it a divisor of"
        raise InputError(f"{message} d_model ({d_model}), got {patch_size}", option="patch_size")
    layers: list[nn.Module] = []
    for i in reversed(range(n_layers)):
        width = d_model // 2**i
        layers.append(nn.Conv2d(n_channels, width, 3, stride=2, padding=1, bias=False))
        layers += [nn.GroupNorm(1, width), nn.ReLU()]
        n_channels = width
    return nn.Sequential(*layers)


class PatchEmbedding(nn.Module):
    """Patch embedding of images, with learned prefix tokens (Dosovitskiy et al. 2020, eq. 1).

    Args:
        image_size: Side of the square image in pixels.
        patch_size: Side of a patch in pixels.
        n_channels: Number of channels C.
        d_model: Model width D.
        positions: A name in `fourfold.core.positions.POSITIONS`, or a function that builds a
            `PositionTable` from the number of positions and the width D. With sincos2d or
            sincos2d_mae, prefix tokens have no position.
        n_prefix: Number of learned tokens before the patches: 1 for a class token, 2 with DeiT's
            distillation token.
        dropout: Dropout probability of the embedded tokens.
        has_convolutions: Embed the output of `convolutional_stem` by a linear map of each position,
            instead of the pixels of each patch.

    Raises:
        InputError: `image_size` is not divisible by `patch_size`, the name of the positions is
            unknown, or `convolutional_stem` does not support the sizes.

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
        has_convolutions: bool = False,
    ) -> None:
        super().__init__()
        if image_size % patch_size:
            message = f"must be divisible by patch_size ({patch_size}), got {image_size}"
            raise InputError(message, option="image_size")
        self.image_size = image_size
        self.n_channels = n_channels
        self.stem: nn.Module = nn.Identity()
        if has_convolutions:
            self.stem = convolutional_stem(patch_size, n_channels, d_model)
            self.patches = nn.Conv2d(d_model, d_model, 1)
        else:
            self.patches = nn.Conv2d(n_channels, d_model, patch_size, stride=patch_size)
        n_patches = (image_size // patch_size) ** 2
        # A sinusoidal grid has no row for prefix tokens, so they get no position (big_vision).
        self.prefix_has_position = positions not in ("sincos2d", "sincos2d_mae")
        rows = n_patches + n_prefix * self.prefix_has_position
        self.positions = make_positions(positions, rows, d_model)
        self.prefix = nn.Parameter(torch.zeros(n_prefix, d_model)) if n_prefix else None
        self.dropout = Dropout(dropout)

    def forward(self, images: Tensor) -> Tensor:
        """Embed the patches of images, put the prefix tokens before them, and add the positions.

        Shapes:
            images (B, C, image_size, image_size) to (B, n_prefix + N, D).

        Raises:
            InputError: The images do not have the size and number of channels of this embedding.
        """
        check_image_shape(images, self.n_channels, self.image_size)
        # Under autocast the convolution runs in low precision; the residual stream stays in fp32.
        x = self.patches(self.stem(images)).to(self.patches.weight.dtype).flatten(2).mT  # (B, N, D)
        if self.positions is not None and not self.prefix_has_position:
            x = x + self.positions.weight
        if self.prefix is not None:
            x = torch.cat([self.prefix.expand(x.shape[0], -1, -1), x], dim=1)
        if self.positions is not None and self.prefix_has_position:
            x = x + self.positions.weight
        return self.dropout(x)
