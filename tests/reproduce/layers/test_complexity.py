"""Vaswani's Table 1 on layers that run: counts by hand, and growth that is not told beforehand."""

import pytest
import torch

from fourfold.reproduce.layers.complexity import (
    LAYERS,
    Size,
    cost_formula,
    growth,
    operations,
    path,
    sequential,
)

S = Size(n=27, d=8, k=3, r=5)


@pytest.mark.parametrize(
    ("name", "count", "chain", "far"),
    [
        ("self_attention", 2 * 27 * 27 * 8, 2, 1),  # scores and weighted sum
        ("recurrent", 27 * 8 * 8, 26, 26),  # the first token has no past to wait for
        ("convolutional", 3 * 27 * 8 * 8, 1, 3),  # 3 + 9 + 27 reach back 26
        ("restricted", 2 * 5 * 27 * 8, 2, 13),  # two tokens further a layer
    ],
)
def test_what_is_counted_by_hand(name: str, count: int, chain: int, far: int) -> None:
    layer = LAYERS[name]
    assert operations(layer, S) == count
    assert sequential(layer, S) == chain
    assert path(layer, S) == far


def test_formulas_follow_the_layer_and_not_its_name() -> None:
    def twice(x: torch.Tensor, size: Size, depth: int) -> torch.Tensor:
        w = torch.ones(size.d, size.d, dtype=x.dtype)
        return torch.mm(torch.mm(x, w), w)

    def cubic(x: torch.Tensor, size: Size, depth: int) -> torch.Tensor:
        return (x @ x.T) @ (x @ x.T) @ x

    assert cost_formula(twice) == "O(n * d^2)"
    assert cost_formula(cubic) in ("O(n^2 * d)", "O(n^3)")
    assert growth(sequential, twice) == "O(1)"
    assert growth(path, cubic) == "O(1)"
