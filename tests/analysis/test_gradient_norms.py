"""Gradient norms: against products of one-step Jacobians, autograd, and values of section 9.1."""

import math

import pytest
import torch
from torch import nn

from fourfold.analysis.gradient_norms import (
    initial_gradient_norms,
    input_gradient_norms,
    state_gradient_norms,
)
from fourfold.core.block import Stack
from fourfold.core.config import TransformerConfig
from fourfold.core.masks import Mask
from fourfold.layers.init import initialize

DISTANCES = (1, 5, 10, 20, 50, 100)
# Norms for width 64, computed with NumPy, independently of torch: mean of 3 seeds.
REFERENCE = {
    "rnn": [0.94, 7e-2, 2e-3, 1e-6, 1e-16, 1e-32],
    "rnn_orthogonal": [1.0, 0.51, 0.15, 9e-3, 2e-6, 5e-13],
    "rnn_orthogonal_1_5": [1.5, 2.4, 2.8, 3.0, 1.8, 0.4],
    "lstm": [0.98, 0.15, 2e-2, 2e-4, 6e-11, 8e-22],
    "lstm_bias_1": [1.1, 0.57, 0.28, 5e-2, 2e-4, 7e-9],
}
OPTIONS = {
    "rnn": {"cell": "rnn"},
    "rnn_orthogonal": {"cell": "rnn", "orthogonal": 1.0},
    "rnn_orthogonal_1_5": {"cell": "rnn", "orthogonal": 1.5},
    "lstm": {"cell": "lstm"},
    "lstm_bias_1": {"cell": "lstm", "forget_bias": 1.0},
}


@pytest.mark.parametrize("name", REFERENCE)
def test_state_gradients_have_the_order_of_magnitude_of_an_independent_computation(
    name: str,
) -> None:
    norms = initial_gradient_norms("state", DISTANCES, **OPTIONS[name])  # type: ignore[arg-type]
    for distance, norm, expected in zip(DISTANCES, norms, REFERENCE[name], strict=True):
        # The norm is about a power of the distance, and so is its deviation between seeds.
        assert abs(math.log10(norm / expected)) < 0.15 + 0.02 * distance


def test_state_gradient_is_the_product_of_one_step_jacobians() -> None:
    torch.manual_seed(0)
    layer = nn.RNN(3, 4, batch_first=True).double()
    x = torch.randn(6, 3, dtype=torch.float64)
    states = layer(x[None])[0][0]  # (T, H)
    product = torch.eye(4, dtype=torch.float64)
    expected = []
    for state in states.flip(0)[:4]:
        expected.append(float(torch.linalg.matrix_norm(product, ord=2)))
        product = product @ ((1 - state**2)[:, None] * layer.weight_hh_l0).detach()
    assert state_gradient_norms(layer, x, range(4)) == pytest.approx(expected)


def test_state_of_an_lstm_includes_its_cell() -> None:
    """With open forget gates and closed other gates, the cell carries a gradient of norm 1."""
    layer = nn.LSTM(3, 4, num_layers=2, batch_first=True).double()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.zero_()
            if name.startswith("bias_ih"):
                parameter.copy_(torch.tensor([-50.0, 50.0, 0.0, -50.0]).repeat_interleave(4))
    x = torch.randn(30, 3, dtype=torch.float64)
    assert state_gradient_norms(layer, x, [1, 29]) == pytest.approx([1.0, 1.0])
    assert input_gradient_norms(lambda x: layer(x)[0], x, [29])[0] < 1e-12


def test_input_gradient_is_the_jacobian_of_autograd() -> None:
    torch.manual_seed(0)
    config = TransformerConfig(d_model=8, n_layers=2, n_heads=2, d_ff=8, norm_placement="pre")
    stack = Stack(config).double().eval()
    initialize(stack, "vaswani")
    x = torch.randn(5, 8, dtype=torch.float64)

    def layers(x: torch.Tensor) -> torch.Tensor:
        return stack(x, Mask(causal=True))

    jacobian = torch.autograd.functional.jacobian(lambda x: layers(x[None])[0, -1], x)
    expected = [float(torch.linalg.matrix_norm(jacobian[:, 4 - k], ord=2)) for k in range(5)]
    assert input_gradient_norms(layers, x, range(5)) == pytest.approx(expected)


def test_gradients_of_a_transformer_do_not_vanish_with_the_distance() -> None:
    for placement in ("pre", "post"):
        config = TransformerConfig(
            d_model=64, n_layers=1, n_heads=4, d_ff=64, norm_placement=placement
        )
        norms = initial_gradient_norms("input", DISTANCES, config=config, n_seeds=1)
        assert max(norms) < 10 * min(norms)


def test_random_generator_is_unchanged() -> None:
    state = torch.random.get_rng_state()
    initial_gradient_norms("state", [1], cell="rnn", width=4)
    assert torch.equal(state, torch.random.get_rng_state())
