"""Interpolation of position embeddings: equal to scipy and torch, and exact at the same size."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.models.finetuning.position_interpolation import (
    INTERPOLATIONS,
    interpolate_positions,
)


def grid(side: int) -> Tensor:
    return torch.randn(1 + side * side, 5, generator=torch.Generator().manual_seed(side))


@pytest.mark.parametrize(("a", "b"), [(6, 9), (9, 6), (14, 24), (3, 4)])
def test_zoom_equals_scipy(a: int, b: int) -> None:
    """google-research/vision_transformer: zoom of order 1 over the grid."""
    ndimage = pytest.importorskip("scipy.ndimage")
    old = grid(a)
    expected = ndimage.zoom(old[1:].reshape(a, a, 5).numpy(), (b / a, b / a, 1), order=1)
    made = interpolate_positions(old, torch.zeros(1 + b * b, 5), "zoom")
    np.testing.assert_allclose(made[1:].reshape(b, b, 5).numpy(), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("bicubic", {"mode": "bicubic", "align_corners": False}),
        ("bicubic_antialias", {"mode": "bicubic", "antialias": True}),
        ("bilinear", {"mode": "bilinear", "antialias": False}),
    ],
)
def test_other_interpolations_equal_torch_and_differ(method: str, options: dict[str, Any]) -> None:
    old = grid(14)
    for b in (24, 7):
        made = interpolate_positions(old, torch.zeros(1 + b * b, 5), method)[1:]
        image = old[1:].reshape(1, 14, 14, 5).permute(0, 3, 1, 2)
        expected = F.interpolate(image, size=(b, b), **options).permute(0, 2, 3, 1).reshape(-1, 5)
        torch.testing.assert_close(made, expected)
    shrunk = {m: interpolate_positions(old, torch.zeros(50, 5), m) for m in INTERPOLATIONS}
    others = [m for m in INTERPOLATIONS if m != method]
    assert all((shrunk[method] - shrunk[m]).abs().max() > 0.01 for m in others)


@pytest.mark.parametrize("method", INTERPOLATIONS)
def test_grid_of_the_same_size_is_unchanged(method: str) -> None:
    old = grid(7)
    assert torch.equal(interpolate_positions(old, torch.zeros(50, 5), method), old)
