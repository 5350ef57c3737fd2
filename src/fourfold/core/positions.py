"""Where a token stands. Every kind is one table of rows, indexed by a slice or by positions.

Shapes: N rows, D model width, T tokens.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fourfold.core.errors import InputError


class PositionTable(nn.Module):
    """A table of position vectors (N, D): learned, or fixed and not in the state dict."""

    weight: Tensor

    def __init__(self, table: Tensor, learned: bool) -> None:
        super().__init__()
        if learned:
            self.weight = nn.Parameter(table)
        else:
            self.register_buffer("weight", table, persistent=False)

    def forward(self, index: Tensor | slice) -> Tensor:
        """Rows at `index`: a slice of T gives (T, D), positions (B, T) give (B, T, D).

        Raises:
            InputError: A position lies beyond the table.
        """
        rows = len(self.weight)
        last = index.stop if isinstance(index, slice) else rows
        if isinstance(index, Tensor) and index.numel() and not torch.compiler.is_compiling():
            # A graph cannot stop to look, and CUDA would be waited for: only where it may be so.
            last = int(index.max()) + 1 if not index.is_cuda or index.shape[-1] > rows else rows
        if last > rows:
            raise InputError(f"a sequence of {last} tokens is longer than max_len {rows}")
        return self.weight[index]


def learned(n_rows: int, width: int) -> PositionTable:
    """One free vector a position (Gehring et al. 2017; BERT, GPT, ViT)."""
    return PositionTable(torch.zeros(n_rows, width), learned=True)


def sinusoidal(n_rows: int, width: int) -> PositionTable:
    """Sine on even and cosine on odd channels, wavelengths 2 pi to 10000 * 2 pi (Vaswani 3.5)."""
    sines, cosines = _waves(n_rows, width)
    return PositionTable(torch.stack([sines, cosines], dim=-1).flatten(1), learned=False)


def sinusoidal_halves(n_rows: int, width: int) -> PositionTable:
    """The same waves, all sines first and then all cosines (Marian, and tensor2tensor's order)."""
    return PositionTable(torch.cat(_waves(n_rows, width), dim=-1), learned=False)


def sincos2d(n_rows: int, width: int) -> PositionTable:
    """Sines and cosines of column and row on a square grid (Beyer et al. 2022, after MoCo v3)."""
    side = math.isqrt(n_rows)
    if side * side != n_rows or width % 4:
        raise InputError(
            f"sincos2d positions need a square grid and a width divisible by 4, "
            f"not {n_rows} patches of width {width}"
        )
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    # No linspace: transformers makes its own of it, and it may then miss the meta device.
    steps = torch.arange(width // 4, dtype=torch.float64) / max(width // 4 - 1, 1)
    omega = 10000.0**-steps
    angles = [axis.flatten()[:, None] * omega for axis in (x, y)]  # each (N, D/4)
    table = torch.cat([wave(angle) for angle in angles for wave in (torch.sin, torch.cos)], dim=1)
    return PositionTable(table.float(), learned=False)


def _waves(n_rows: int, width: int) -> tuple[Tensor, Tensor]:
    if width % 2:
        raise InputError(f"sinusoidal positions need an even d_model, not {width}")
    # fp64 on purpose: sin(1e4) in fp32 already differs in the third digit.
    rates = 10000.0 ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(n_rows, dtype=torch.float64)[:, None] * rates  # (N, D/2)
    return angles.sin().float(), angles.cos().float()


POSITIONS: dict[str, Callable[[int, int], PositionTable] | None] = {
    "none": None,
    "learned": learned,
    "sinusoidal": sinusoidal,
    "sinusoidal_halves": sinusoidal_halves,
    "sincos2d": sincos2d,
}
