"""Dropout by sixteen bits: what it drops, and that it is torch's in all else."""

import pytest
import torch
from torch import nn

from fourfold.kernels.dropout import Dropout, keep


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_share_that_is_dropped(p: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.ones(401, 503, dtype=dtype)  # no multiple of four
    y = Dropout(p)(x)
    assert y.dtype == dtype
    # Four standard deviations of a binomial.
    error = 4 * (p * (1 - p) / x.numel()) ** 0.5
    assert (y == 0).double().mean().item() == pytest.approx(p, abs=error + 1e-9)
    if p < 1.0:
        assert y.double().max().item() == pytest.approx(1 / (1 - p), rel=2**-8)
        assert set(y.unique().tolist()) <= {0.0, y.max().item()}


def test_neighbours_are_independent() -> None:
    """Four numbers share one draw: none of them may know of another."""
    kept = keep(torch.empty(4_000_000), 0.3)[0].double() - 0.7
    for distance in range(1, 9):
        correlation = (kept[distance:] * kept[:-distance]).mean() / (0.3 * 0.7)
        assert abs(correlation) < 5 / len(kept) ** 0.5


def test_evaluation_and_no_dropout_touch_nothing() -> None:
    x = torch.randn(3, 5)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


def test_the_same_seed_drops_the_same_and_the_gradient_follows() -> None:
    x = torch.randn(7, 11, dtype=torch.float64, requires_grad=True)
    layer = Dropout(0.4)

    def drop(y: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(1)
        return layer(y)

    assert torch.equal(drop(x), drop(x))
    assert not torch.equal(layer(x), layer(x))
    assert torch.autograd.gradcheck(drop, x)


def test_an_empty_tensor_and_a_number() -> None:
    assert Dropout(0.5)(torch.empty(0, 3)).shape == (0, 3)
    assert Dropout(1.0)(torch.tensor(2.0)).item() == 0.0


def test_it_is_shown_like_torch_s() -> None:
    assert repr(Dropout(0.1)) == repr(nn.Dropout(0.1)).replace(", inplace=False", "")
