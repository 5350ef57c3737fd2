"""Interpolation of position embeddings to another image resolution (ViT, section 3.2).

Shapes: D model width, S side of a square grid of patches.
"""

import math
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor

from fourfold.core.validation import check_choice

Interpolation = Literal["bicubic_antialias", "bicubic", "bilinear", "zoom"]
# Arguments of torch.nn.functional.interpolate.
INTERPOLATIONS: dict[str, dict[str, Any]] = {
    "bicubic_antialias": {"mode": "bicubic", "antialias": True},  # timm
    "bicubic": {"mode": "bicubic"},  # DeiT
    "bilinear": {"mode": "bilinear"},  # timm, for Google's own files
    "zoom": {"mode": "bilinear", "align_corners": True},  # Google: zoom of order 1 of scipy.ndimage
}


def interpolate_positions(old: Tensor, new: Tensor, interpolation: str) -> Tensor:
    """Interpolate position embeddings (prefix + S*S, D) of image patches to another resolution.

    The rows before the grid (class token and distillation token) are copied if both tables have
    these rows.

    Args:
        old: Table of the source.
        new: Table of the target, whose values are used for rows that `old` does not have.
        interpolation: A row of `INTERPOLATIONS`.

    Example:
        >>> import torch
        >>> table = torch.zeros(1 + 24 * 24, 8)
        >>> interpolate_positions(torch.randn(1 + 14 * 14, 8), table, "bicubic").shape
        torch.Size([577, 8])
    """
    check_choice("pos_embed_interpolation", interpolation, tuple(INTERPOLATIONS))
    old_side, new_side = math.isqrt(len(old)), math.isqrt(len(new))
    old_prefix, new_prefix = len(old) - old_side**2, len(new) - new_side**2
    grid = old[old_prefix:].float().T.reshape(1, -1, old_side, old_side)  # (1, D, S, S)
    if old_side != new_side:
        grid = F.interpolate(grid, size=(new_side, new_side), **INTERPOLATIONS[interpolation])
    result = new.clone()
    result[new_prefix:] = grid[0].flatten(1).T.to(new)
    n_copied = min(old_prefix, new_prefix)
    result[:n_copied] = old[:n_copied].to(new)
    return result
