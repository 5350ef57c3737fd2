"""Weighted sums of rows of a table, which a CPU reads at the rate of its memory.

`embedding_bag` is made for them; what a product of one row with a matrix is to torch's libraries
takes two to four times as long (measured: 18 to 33 GB/s against 7 to 15, where memory gives 31).

Shapes: R rows of the table, W its width, S sums, M members of each.
"""

from functools import cache, lru_cache

import torch
from torch import Tensor

TYPES = (torch.float32, torch.bfloat16)


@cache
def _has_kernel() -> bool:
    return "fbgemm" in torch.backends.quantized.supported_engines


def sums_fast(table: Tensor) -> bool:
    """Whether `weighted_sums` of a table is faster than a product."""
    return table.device.type == "cpu" and table.dtype in TYPES and _has_kernel()


def weighted_sums(table: Tensor, members: tuple[Tensor, Tensor], factors: Tensor) -> Tensor:
    """(S, W): the sums of rows of a table (R, W), chosen by `members`, times factors (S * M,)."""
    return torch.embedding_bag(table, *members, mode=0, per_sample_weights=factors)[0]


@lru_cache(maxsize=64)
def runs(n_sums: int, length: int, step: int, copies: int = 1) -> tuple[Tensor, Tensor]:
    """Members of S sums: `length` rows one after the other, of the next sum `step` rows on.

    Args:
        n_sums: How many begin at different rows.
        length: M.
        step: Rows from one beginning to the next.
        copies: How many sums begin at each.

    Returns:
        The S * M rows, and the place among them where each sum begins, both int32.
    """
    beginnings = torch.arange(n_sums, dtype=torch.int32) * step
    rows = beginnings[:, None, None] + torch.arange(length, dtype=torch.int32)
    rows = rows.expand(-1, copies, -1).reshape(-1)
    return rows, torch.arange(0, len(rows), length, dtype=torch.int32)
