"""Dropout with 16 random bits per element, compared with `nn.Dropout`."""

import pytest
import torch
from torch import nn

from fourfold.kernels.dropout import Dropout, keep_mask


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_dropped_share_equals_p(p: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.ones(401, 503, dtype=dtype)  # not a multiple of four
    y = Dropout(p)(x)
    assert y.dtype == dtype
    # Four standard deviations of a binomial.
    error = 4 * (p * (1 - p) / x.numel()) ** 0.5
    assert (y == 0).double().mean().item() == pytest.approx(p, abs=error + 1e-9)
    if p < 1.0:
        assert y.double().max().item() == pytest.approx(1 / (1 - p), rel=2**-8)
        assert set(y.unique().tolist()) <= {0.0, y.max().item()}


def test_neighbouring_elements_are_independent() -> None:
    """Four elements share one random 64-bit number."""
    kept = keep_mask(torch.empty(4_000_000), 0.3)[0].double() - 0.7
    for distance in range(1, 9):
        correlation = (kept[distance:] * kept[:-distance]).mean() / (0.3 * 0.7)
        assert abs(correlation) < 5 / len(kept) ** 0.5


def test_evaluation_and_p_zero_return_the_input() -> None:
    x = torch.randn(3, 5)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


def test_seed_reproduces_the_mask_and_gradcheck_passes() -> None:
    x = torch.randn(7, 11, dtype=torch.float64, requires_grad=True)
    layer = Dropout(0.4)

    def drop(y: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(1)
        return layer(y)

    assert torch.equal(drop(x), drop(x))
    assert not torch.equal(layer(x), layer(x))
    assert torch.autograd.gradcheck(drop, x)


def test_empty_tensor_and_scalar() -> None:
    assert Dropout(0.5)(torch.empty(0, 3)).shape == (0, 3)
    assert Dropout(1.0)(torch.tensor(2.0)).item() == 0.0


def test_dropout_is_found_as_nn_dropout() -> None:
    assert isinstance(Dropout(0.1), nn.Dropout)
    assert repr(Dropout(0.1)) == repr(nn.Dropout(0.1))
