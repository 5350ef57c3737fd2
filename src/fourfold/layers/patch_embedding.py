"""Patch embedding: the patches of an image as tokens, after a class token (ViT, section 3.1).

Shapes: B batch, C channels, D model width, N patches.
"""

import torch
from torch import Tensor, nn

from fourfold.core.validation import ImageSize, height_width
from fourfold.errors import InputError
from fourfold.kernels.dropout import Dropout
from fourfold.layers.image_positions import positions_on
from fourfold.layers.positions import make_positions


def check_image_shape(images: Tensor, n_channels: int, size: tuple[int, int]) -> None:
    """Raise InputError unless `images` has the shape (B, n_channels, height, width)."""
    shape = tuple(images.shape)
    if len(shape) != 4 or shape[1:] != (n_channels, *size):
        message = f"must have the shape (B, {n_channels}, {size[0]}, {size[1]}), got {shape}"
        raise InputError(message, option="images")


def patch_grid(image_size: ImageSize, patch_size: int) -> tuple[int, int]:
    """Return the numbers of rows and columns of the patches of an image.

    Raises:
        InputError: `patch_size` does not divide height and width.
    """
    height, width = height_width(image_size)
    if height % patch_size or width % patch_size:
        message = f"must be divisible by patch_size ({patch_size}), got {image_size}"
        raise InputError(message, option="image_size")
    return height // patch_size, width // patch_size


class PatchEmbedding(nn.Module):
    """Patch embedding of images, with learned prefix tokens (Dosovitskiy et al. 2020, eq. 1).

    Args:
        image_size: Height and width of the image in pixels, or the side of a square image, which
            `patch_size` must divide.
        positions: A name in `fourfold.layers.image_positions.VIT_POSITIONS`. With sincos2d
            or sincos2d_mae, prefix tokens have no position.
        n_prefix: Number of learned tokens before the patches: 1 for a class token, 2 with DeiT's
            distillation token.
        n_unplaced: Number of the last prefix tokens that have no position, such as registers.
        dropout: Dropout probability of the embedded tokens.
        norm: Module that is applied to the tokens before dropout. Patches then have no bias.
        stem: Module that maps images to one feature vector of width D for each patch, (B, D, rows,
            columns), which replaces the pixels of the patch. None means no stem.

    Attributes:
        grid: Numbers of rows and columns of the patches.
    """

    def __init__(
        self,
        image_size: ImageSize,
        patch_size: int,
        n_channels: int,
        d_model: int,
        *,
        positions: str = "learned",
        n_prefix: int = 1,
        n_unplaced: int = 0,
        dropout: float = 0.0,
        norm: nn.Module | None = None,
        stem: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.grid = patch_grid(image_size, patch_size)
        self.image_size = height_width(image_size)
        self.n_channels = n_channels
        self.stem = nn.Identity() if stem is None else stem
        shape = (n_channels, d_model, patch_size) if stem is None else (d_model, d_model, 1)
        self.patches = nn.Conv2d(*shape, stride=shape[2], bias=norm is None)
        n_patches = self.grid[0] * self.grid[1]
        # A sinusoidal grid has no row for prefix tokens, so they get no position (big_vision).
        is_grid = positions in ("sincos2d", "sincos2d_mae")
        self.n_placed = 0 if is_grid else n_prefix - n_unplaced  # prefix tokens with a position
        self.positions = make_positions(
            positions, n_patches + self.n_placed, d_model, positions_on(self.grid)
        )
        # The class token, the distillation token and the registers, in this order.
        self.prefix = nn.Parameter(torch.zeros(n_prefix, d_model)) if n_prefix else None
        self.norm = norm or nn.Identity()
        self.dropout = Dropout(dropout)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, C, height, width) to prefix tokens and patches, (B, n_prefix + N, D)."""
        check_image_shape(images, self.n_channels, self.image_size)
        # Under autocast the convolution runs in low precision; the residual stream stays in fp32.
        x = self.patches(self.stem(images)).to(self.patches.weight.dtype).flatten(2).mT  # (B, N, D)
        n_placed = self.n_placed
        prefix: Tensor | None = self.prefix
        if self.positions is not None:
            table = self.positions.weight
            x = x + table[n_placed:]
            if prefix is not None:
                prefix = torch.cat([prefix[:n_placed] + table[:n_placed], prefix[n_placed:]])
        if prefix is not None:
            x = torch.cat([prefix.expand(x.shape[0], -1, -1), x], dim=1)
        return self.dropout(self.norm(x))


def convolutional_stem(patch_size: int, n_channels: int, d_model: int) -> nn.Sequential:
    """Build convolutions that map the pixels of each patch to one vector (Xiao et al. 2021).

    The result is a module from images (B, C, height, width) to (B, D, rows, columns). Each 3x3
    convolution halves the side and, from the last to the first, the number of channels. Each is
    followed by a GroupNorm of one group and a ReLU. With the batch norm of the paper, an optimizer
    step would depend on the division of the batch into micro-batches.

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
