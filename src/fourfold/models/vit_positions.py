"""Where a patch stands, in the ways that ViT's Table 8 compares (Dosovitskiy et al. 2020, D.4).

Shapes: B batch, T tokens (prefix and N patches), D model width, H heads.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import init

from fourfold.core.config import TransformerConfig
from fourfold.core.embeddings import make_positions
from fourfold.core.errors import InputError
from fourfold.core.masks import Mask
from fourfold.core.positions import POSITIONS, PositionTable
from fourfold.core.stack import Stack

STD = 0.02  # of first vectors, as ViT and BERT have it
PLACES = ("stem", "layers", "layers_shared")


class GridTable(PositionTable):
    """A free vector for each row and each column of a square grid, half as wide as the model.

    Tokens in front of the grid have a whole vector of their own.
    """

    def __init__(self, n_rows: int, width: int) -> None:
        nn.Module.__init__(self)
        side = math.isqrt(n_rows)
        if width % 2:
            raise InputError(f"positions learned2d need an even d_model, not {width}")
        self.prefix = nn.Parameter(torch.randn(n_rows - side**2, width) * STD)
        self.x = nn.Parameter(torch.randn(side, width // 2) * STD)
        self.y = nn.Parameter(torch.randn(side, width // 2) * STD)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The table (T, D), row by row of the grid."""
        side = len(self.x)
        x = self.x.expand(side, -1, -1)
        y = self.y[:, None].expand(-1, side, -1)
        return torch.cat([self.prefix, torch.cat([x, y], dim=-1).flatten(0, 1)])


class DistanceBias(nn.Module):
    """One number for each head and signed distance between tokens, added to the scores."""

    def __init__(self, n_heads: int, length: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(n_heads, 2 * length - 1))
        places = torch.arange(length)
        ahead = places - places[:, None] + length - 1  # (T, T), from 0
        self.ahead: Tensor
        self.register_buffer("ahead", ahead, persistent=False)

    def forward(self) -> Tensor:
        """(1, H, T, T)."""
        return self.table[:, self.ahead][None]


class PlacedBlock(nn.Module):
    """A block that adds positions to what it reads.

    Args:
        block: The block.
        positions: The table.
        owns: Whether it stands in the state dict of this one, not of another block.
    """

    positions: PositionTable

    def __init__(self, block: nn.Module, positions: PositionTable, owns: bool) -> None:
        super().__init__()
        self.block = block
        if owns:
            self.positions = positions
        else:
            object.__setattr__(self, "positions", positions)  # past the registration of modules

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        return self.block(x + self.positions.weight, *args, **kwargs)


class PatchStack(Stack):
    """A stack that knows where patches stand, where the stem has not told it.

    Args:
        config: The stack's description.
        positions: relative, or what each block adds to its input: learned or learned2d.
        shared: Whether all blocks add the same vectors.
        length: T.
    """

    def __init__(
        self, config: TransformerConfig, positions: str, *, shared: bool, length: int
    ) -> None:
        super().__init__(config)
        self.bias = None
        if positions == "relative":
            self.bias = DistanceBias(config.n_heads, length)
            return
        placed: list[PlacedBlock] = []
        for block in self.blocks:
            owns = not shared or not placed
            table = make_positions(positions, length, config.d_model) if owns else None
            placed.append(PlacedBlock(block, table or placed[0].positions, owns))
        self.blocks = nn.ModuleList(placed)

    def forward(self, x: Tensor, mask: Mask = Mask(), **more: Any) -> Tensor:
        """As `Stack.forward`, with the bias of distances, if there is one, in all blocks."""
        bias = None if self.bias is None else self.bias()
        return super().forward(x, mask, bias=bias, **more)

    def first_positions(self) -> None:
        """N(0, 0.02) in each block as at a stem, once the other weights have their first values."""
        for module in self.modules():
            if isinstance(module, PositionTable) and isinstance(module.weight, nn.Parameter):
                init.normal_(module.weight, std=STD)


POSITIONS["learned2d"] = GridTable  # a row of a table that the core must not know
