"""Position embeddings of texts: learned or sinusoidal.

`fourfold.layers.image_positions` adds those of images. Shapes: N positions in a table, D
model width, T tokens.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from fourfold.core.validation import check_choice
from fourfold.errors import InputError


class PositionTable(nn.Module):
    """Table of N position vectors: a parameter, or a buffer that the state dict does not contain.

    Example:
        >>> positions = PositionTable(torch.arange(8.0).view(4, 2), learned=False)
        >>> positions(slice(1, 3))
        tensor([[2., 3.],
                [4., 5.]])
    """

    weight: Tensor

    def __init__(self, table: Tensor, learned: bool) -> None:
        super().__init__()
        if learned:
            self.weight = nn.Parameter(table)
        else:
            self.register_buffer("weight", table, persistent=False)

    def forward(self, index: Tensor | slice) -> Tensor:
        """Look up the vectors (T, D) of a slice, or those (B, T, D) of a tensor of positions.

        Raises:
            InputError: A position is N or larger.
        """
        rows = len(self.weight)
        length = index.stop if isinstance(index, slice) else rows
        if isinstance(index, Tensor) and not torch.compiler.is_compiling() and index.numel():
            # Reading a value waits for CUDA, so it is read only where a position can be too large.
            fits = index.is_cuda and index.shape[-1] <= rows
            length = rows if fits else int(index.max()) + 1
        if length > rows:
            message = f"must have at most max_len = {rows} tokens, got {length}"
            raise InputError(message, option="ids")
        return self.weight[index]


def learned(n_rows: int, width: int) -> PositionTable:
    """Build a table of learned position vectors, which are 0 before initialization."""
    return PositionTable(torch.zeros(n_rows, width), learned=True)


def sinusoidal(n_rows: int, width: int) -> PositionTable:
    """Build a table of sinusoidal positions (Vaswani et al. 2017, section 3.5), of an even width.

    Even channels are sines and odd channels cosines of the position, with wavelengths from 2 pi to
    10000 * 2 pi.

    Example:
        >>> sinusoidal(100, 4).weight[1]  # sin 1, cos 1, sin 0.01, cos 0.01
        tensor([0.8415, 0.5403, 0.0100, 0.9999])
    """
    return _table(n_rows, width, lambda waves: torch.stack(waves, dim=-1).flatten(1))


def sinusoidal_halves(n_rows: int, width: int) -> PositionTable:
    """Build a table of sinusoidal positions with all sines before all cosines (Marian)."""
    return _table(n_rows, width, partial(torch.cat, dim=-1))


def _table(n_rows: int, width: int, join: Callable[[tuple[Tensor, ...]], Tensor]) -> PositionTable:
    if width % 2:
        raise InputError(f"must be even for sinusoidal positions, got {width}", option="d_model")
    if torch.get_default_device().type == "meta":  # where torch imports its compiler to divide
        return PositionTable(torch.empty(n_rows, width), learned=False)
    return PositionTable(join(_sines_and_cosines(n_rows, width)), learned=False)


def _sines_and_cosines(n_rows: int, width: int) -> tuple[Tensor, Tensor]:
    # In fp64, because sin(1e4) in fp32 differs in the third digit.
    rates = 10000.0 ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(n_rows, dtype=torch.float64)[:, None] * rates  # (N, D/2)
    return angles.sin().float(), angles.cos().float()


Tables = dict[str, Callable[[int, int], PositionTable] | None]
POSITIONS: Tables = {
    "none": None,
    "learned": learned,
    "sinusoidal": sinusoidal,
    "sinusoidal_halves": sinusoidal_halves,
}


def make_positions(
    positions: str, n_rows: int, d_model: int, tables: Tables = POSITIONS
) -> PositionTable | None:
    """Build a table of N position vectors of width D, or return None if `positions` is "none".

    Args:
        positions: A name in `tables`.
        tables: Functions that build a table from N and D, by name.

    Raises:
        InputError: The name is unknown, or there is no table of this size.
    """
    check_choice("positions", positions, tuple(tables))
    build = tables[positions]
    return None if build is None else build(n_rows, d_model)
