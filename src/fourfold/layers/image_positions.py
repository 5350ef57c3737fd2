"""Position embeddings of Vision Transformers, and their interpolation to another image size.

Dosovitskiy et al. 2020, appendix D.4, compare kinds of position embeddings in Table 8. Prefix
tokens are the tokens before the patches: the class token and DeiT's distillation token.
Shapes: B batch, T tokens (prefix tokens and N patches), D model width, H heads.
"""

import math
from functools import partial
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import init

from fourfold.core.block import Block, Stack
from fourfold.core.config import TransformerConfig
from fourfold.core.masks import Mask
from fourfold.core.rotary import Rotation
from fourfold.errors import InputError
from fourfold.layers.positions import POSITIONS, PositionTable, Tables, make_positions

ViTPositions = Literal[
    "none",
    "learned",
    "sinusoidal",
    "sinusoidal_halves",
    "sincos2d",
    "sincos2d_mae",
    "learned2d",
    "relative",
    "rotary2d",
]
IN_STACK = ("relative", "rotary2d")  # positions that the embedding does not add
Interpolation = Literal["bicubic_antialias", "bicubic", "bilinear", "zoom"]
# Arguments of torch.nn.functional.interpolate.
INTERPOLATIONS: dict[str, dict[str, Any]] = {
    "bicubic_antialias": {"mode": "bicubic", "antialias": True},  # timm
    "bicubic": {"mode": "bicubic"},  # DeiT
    "bilinear": {"mode": "bilinear"},  # timm, for Google's own files
    "zoom": {"mode": "bilinear", "align_corners": True},  # Google: zoom of order 1 of scipy.ndimage
}
INIT_STD = 0.02


Grid = tuple[int, int]  # numbers of rows and columns of the patches


def square_grid(n_rows: int) -> Grid:
    """Return the largest square grid of patches in a table with `n_rows` rows."""
    side = math.isqrt(n_rows)
    return side, side


class AxialPositions(PositionTable):
    """Learned positions of the patches of an image, and of the tokens before the patches.

    Source: Dosovitskiy et al. 2020, appendix D.4. The vector of a patch is the concatenation of D /
    2 values for its column and D / 2 values for its row. Each token before the patches, such as the
    class token, has D values. `grid` has the numbers of rows and columns of the patches; without it
    the largest square number up to `n_rows` is the number of patches N.
    """

    def __init__(self, n_rows: int, width: int, grid: Grid | None = None) -> None:
        nn.Module.__init__(self)
        rows, columns = grid or square_grid(n_rows)
        if width % 2:
            raise InputError(f"must be even for positions learned2d, got {width}", option="d_model")
        self.prefix = nn.Parameter(torch.randn(n_rows - rows * columns, width) * INIT_STD)
        self.x = nn.Parameter(torch.randn(columns, width // 2) * INIT_STD)
        self.y = nn.Parameter(torch.randn(rows, width // 2) * INIT_STD)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """Position vectors (T, D), first of the prefix tokens, then of the patches row by row."""
        x = self.x.expand(len(self.y), -1, -1)
        y = self.y[:, None].expand(-1, len(self.x), -1)
        return torch.cat([self.prefix, torch.cat([x, y], dim=-1).flatten(0, 1)])


def sincos2d(
    n_rows: int, width: int, grid: Grid | None = None, *, n_steps: int | None = None
) -> PositionTable:
    """Build sinusoidal positions of a grid of patches (Beyer et al. 2022, after MoCo v3).

    The first half of the channels depends on the column of a patch, the second half on its row. The
    wavelengths are geometric, from 2 pi to 10000 * 2 pi.

    Args:
        n_rows: Number of patches N.
        width: Width D of a vector, divisible by 4.
        grid: Numbers of rows and columns of the patches; None for a square.
        n_steps: Number of steps between both ends of this range. None means width / 4 - 1, so that
            the longest wavelength is that of the last channel.
    """
    if width % 4:
        raise InputError(f"must be divisible by 4 for sincos2d, got {width}", option="d_model")
    y, x = torch.meshgrid(*map(torch.arange, grid or square_grid(n_rows)), indexing="ij")
    # Not torch.linspace, which transformers replaces by a version without the meta device.
    steps = torch.arange(width // 4, dtype=torch.float64) / max(n_steps or width // 4 - 1, 1)
    omega = 10000.0**-steps
    angles = [axis.flatten()[:, None] * omega for axis in (x, y)]  # each (N, D/4)
    table = torch.cat([wave(angle) for angle in angles for wave in (torch.sin, torch.cos)], dim=1)
    return PositionTable(table.float(), learned=False)


def sincos2d_mae(n_rows: int, width: int, grid: Grid | None = None) -> PositionTable:
    """Build the positions of `sincos2d` with the wavelengths of MAE (He et al. 2021).

    No channel has the longest wavelength, as in `sinusoidal`.
    """
    return sincos2d(n_rows, width, grid, n_steps=width // 4)


VIT_POSITIONS: Tables = {
    **POSITIONS,
    "sincos2d": sincos2d,
    "sincos2d_mae": sincos2d_mae,
    "learned2d": AxialPositions,
}


def positions_on(grid: Grid) -> Tables:
    """Return the functions of `VIT_POSITIONS`, for patches in a grid (rows, columns)."""
    tables: Any = VIT_POSITIONS
    return tables | {n: partial(tables[n], grid=grid) for n in tables.keys() - POSITIONS.keys()}


class RelativePositionBias(nn.Module):
    """Learned bias on the attention scores for each head and each distance of query and key.

    Source: Dosovitskiy et al. 2020, appendix D.4, without the dependence on the query. A distance
    is the position of the key minus that of the query in the sequence of all T = `length` tokens,
    of which the class token and the distillation token are the first.
    """

    index: Tensor

    def __init__(self, n_heads: int, length: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(n_heads, 2 * length - 1))
        positions = torch.arange(length)
        index = positions - positions[:, None] + length - 1  # (T, T), from 0
        self.register_buffer("index", index, persistent=False)

    def forward(self) -> Tensor:
        """Return the bias (1, H, T, T) of all pairs of a query and a key."""
        return self.table[:, self.index][None]


class BlockWithPositions(nn.Module):
    """Wrapper of a transformer block, which adds position vectors to the input of the block.

    Args:
        positions: Table of the position vectors (T, D).
        is_owner: Register the table as a submodule. This must be True for exactly one of the blocks
            that share a table, so that the state dict contains the table once.
    """

    positions: PositionTable

    def __init__(self, block: Block, positions: PositionTable, is_owner: bool) -> None:
        super().__init__()
        self.block = block
        if is_owner:
            self.positions = positions
        else:
            object.__setattr__(self, "positions", positions)

    @property
    def recompute(self) -> str:
        """Attribute of the block."""
        return self.block.recompute

    @recompute.setter
    def recompute(self, mode: str) -> None:
        self.block.recompute = mode

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Run the block on x (B, T, D) plus the positions, with all other arguments."""
        return self.block(x + self.positions.weight, *args, **kwargs)


class PositionedStack(Stack):
    """Stack with a relative position bias, or with positions added to the input of each block.

    Source: Dosovitskiy et al. 2020, appendix D.4.

    Args:
        positions: relative, for a bias that all blocks share, or learned or learned2d, for vectors.
        grid: Numbers of rows and columns of the patches.
        n_prefix: Number of tokens before the patches.
        shared: Add the vectors of one table in all blocks. False gives each block its own table.
    """

    def __init__(
        self, config: TransformerConfig, positions: str, grid: Grid, n_prefix: int, shared: bool
    ) -> None:
        super().__init__(config)
        length = n_prefix + grid[0] * grid[1]
        self.bias: RelativePositionBias | None = None
        if positions == "relative":
            self.bias = RelativePositionBias(config.n_heads, length)
            return
        blocks: list[BlockWithPositions] = []
        table: Any = None
        for block in cast(list[Block], self.blocks):
            if is_owner := table is None or not shared:
                table = make_positions(positions, length, config.d_model, positions_on(grid))
            blocks.append(BlockWithPositions(block, table, is_owner))
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor, mask: Mask = Mask(), **kwargs: Any) -> Tensor:
        """Run `Stack.forward`, with the relative position bias, if any, on the scores."""
        bias = None if self.bias is None else self.bias()
        return super().forward(x, mask, bias=bias, **kwargs)

    def initialize_positions(self) -> None:
        """Draw the learned position tables again, from N(0, 0.02)."""
        for module in self.modules():
            if isinstance(module, PositionTable) and isinstance(module.weight, nn.Parameter):
                init.normal_(module.weight, std=INIT_STD)


class AxialRotaryStack(Stack):
    """Stack whose rotary positions are the row and the column of each patch (DINOv3).

    Source: Siméoni et al. 2025. The centres of the patches have coordinates from -1 to 1 in both
    directions, so the positions do not depend on the number of patches. Half of the pairs of
    channels are rotated by the row, the other half by the column. Prefix tokens are not rotated.

    Args:
        grid: Numbers of rows and columns of the patches.
        n_prefix: Number of tokens before the patches.
    """

    def __init__(self, config: TransformerConfig, grid: Grid, n_prefix: int) -> None:
        super().__init__(config)
        self.grid = grid
        self.n_prefix = n_prefix

    def _rotation(
        self, positions: Tensor | slice | None, x: Tensor, window: int | None
    ) -> Rotation | None:
        theta = self.rope[0]
        assert theta is not None, "rotary2d needs rope_theta"
        options: dict[str, Any] = {"dtype": torch.float32, "device": x.device}
        # The operations are those of transformers, in the same order, so the results are equal.
        rates = 1 / theta ** torch.arange(0, 1, 4 / self.rotary_width, **options)
        centres = (2 * (torch.arange(0.5, n, **options) / n) - 1 for n in self.grid)
        grid = torch.stack(torch.meshgrid(*centres, indexing="ij"), dim=-1).flatten(0, 1)
        angles = (2 * math.pi * grid[:, :, None] * rates).flatten(1)  # (N, P): row, column
        angles = F.pad(angles, (0, 0, self.n_prefix, 0))
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def interpolate_positions(
    old: Tensor, new: Tensor, interpolation: str, grids: tuple[Grid, Grid] | None = None
) -> Tensor:
    """Interpolate the positions of a grid of patches to a grid of another size.

    Source: Dosovitskiy et al. 2020, section 3.2.

    Args:
        old: Table (prefix + N, D) of the source. The rows of prefix tokens are copied.
        new: Table (prefix + N', D), whose values are used for the prefix tokens that `old` does
            not have.
        interpolation: A name in `INTERPOLATIONS`.
        grids: Numbers of rows and columns of the patches in `old` and in `new`; None for squares.
    """
    old_grid, new_grid = grids or (square_grid(len(old)), square_grid(len(new)))
    old_prefix, new_prefix = len(old) - math.prod(old_grid), len(new) - math.prod(new_grid)
    grid = old[old_prefix:].float().T.reshape(1, -1, *old_grid)  # (1, D, rows, columns)
    if old_grid != new_grid:
        grid = F.interpolate(grid, size=new_grid, **INTERPOLATIONS[interpolation])
    result = new.clone()
    result[new_prefix:] = grid[0].flatten(1).T.to(new)
    n_copied = min(old_prefix, new_prefix)
    result[:n_copied] = old[:n_copied].to(new)
    return result
