"""Position tables against their formulas."""

import math

import pytest
import torch

from fourfold.errors import InputError
from fourfold.layers.image_positions import VIT_POSITIONS, sincos2d
from fourfold.layers.positions import (
    learned,
    make_positions,
    sinusoidal,
    sinusoidal_halves,
)


@pytest.mark.parametrize(("n_rows", "width"), [(1, 2), (7, 10), (5000, 16)])
def test_sinusoidal_positions_equal_the_formula(n_rows: int, width: int) -> None:
    pairs, halves = sinusoidal(n_rows, width).weight, sinusoidal_halves(n_rows, width).weight
    assert pairs.shape == halves.shape == (n_rows, width)
    for position in {0, 1, n_rows // 2, n_rows - 1} & set(range(n_rows)):
        for i in range(width // 2):
            angle = position / 10000 ** (2 * i / width)
            expected = (math.sin(angle), math.cos(angle))
            assert pairs[position, 2 * i].item() == pytest.approx(expected[0], abs=1e-7)
            assert pairs[position, 2 * i + 1].item() == pytest.approx(expected[1], abs=1e-7)
            assert halves[position, i].item() == pytest.approx(expected[0], abs=1e-7)
            assert halves[position, width // 2 + i].item() == pytest.approx(expected[1], abs=1e-7)


def test_shifted_sinusoidal_positions_are_a_linear_function() -> None:
    """Vaswani et al. 2017, section 3.5."""
    table = sinusoidal(50, 8).weight.double()
    solution = torch.linalg.lstsq(table[:-3], table[3:]).solution
    torch.testing.assert_close(table[:-3] @ solution, table[3:], rtol=0, atol=1e-5)


def test_sincos2d_equals_the_formula() -> None:
    side, width = 3, 12
    table = sincos2d(side * side, width).weight
    for y in range(side):
        for x in range(side):
            row = []
            for position in (x, y):
                rates = [10000 ** -(i / (width // 4 - 1)) for i in range(width // 4)]
                row += [math.sin(position * rate) for rate in rates]
                row += [math.cos(position * rate) for rate in rates]
            assert table[y * side + x].tolist() == pytest.approx(row, abs=1e-7)


def test_sincos2d_of_minimal_width_is_finite() -> None:
    table = sincos2d(4, 4).weight
    assert table.isfinite().all()
    assert table[3].tolist() == pytest.approx(2 * [math.sin(1), math.cos(1)], abs=1e-7)


def test_sinusoidal_positions_are_not_in_the_state_dict() -> None:
    assert not sinusoidal(4, 4).state_dict()
    assert not list(sinusoidal(4, 4).parameters())
    assert list(learned(4, 6).state_dict()) == ["weight"]
    assert make_positions("none", 4, 6) is None


@pytest.mark.parametrize(
    ("positions", "n_rows", "width", "message"),
    [
        ("sinusoidal", 4, 5, "d_model must be even .* got 5"),
        ("sinusoidal_halves", 4, 7, "d_model must be even .* got 7"),
        ("sincos2d", 9, 6, "d_model must be divisible by 4 for sincos2d, got 6"),
        ("rotary", 4, 4, "positions must be one of none, learned.* got 'rotary'"),
    ],
)
def test_impossible_position_tables_are_rejected(
    positions: str, n_rows: int, width: int, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        make_positions(positions, n_rows, width, VIT_POSITIONS)


@pytest.mark.parametrize("index", [slice(3, 5), torch.tensor([[0, 4]])])
def test_positions_beyond_the_table_are_rejected(index: slice | torch.Tensor) -> None:
    with pytest.raises(InputError, match="ids must have at most max_len = 4 tokens, got 5"):
        learned(4, 2)(index)
