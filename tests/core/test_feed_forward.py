"""Feed-forward layer and activations against their formulas."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from fourfold.core.feed_forward import FeedForward
from tests.fixtures.tiny_models import assert_same


@pytest.mark.parametrize(
    ("activation", "formula"),
    [
        ("relu", lambda x: x.clamp(min=0)),
        ("gelu", lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5))),
        (
            "gelu_tanh",
            lambda x: x / (1 + (-2 * (2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)).exp()),
        ),
        ("quick_gelu", lambda x: x / (1 + (-1.702 * x).exp())),
        ("silu", lambda x: x / (1 + (-x).exp())),
    ],
)
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("bias", [True, False])
def test_feed_forward_equals_its_formula(
    activation: str, formula: Any, gated: bool, bias: bool
) -> None:
    ff = FeedForward(12, 20, activation=activation, gated=gated, bias=bias).double()
    x = torch.randn(2, 3, 12, dtype=torch.float64)
    hidden = formula(F.linear(x, ff.up.weight, ff.up.bias))
    if gated:
        hidden = hidden * F.linear(x, ff.gate.weight, ff.gate.bias)
    assert_same(ff(x), F.linear(hidden, ff.down.weight, ff.down.bias))
    assert any("bias" in key for key, _ in ff.named_parameters()) is bias
