"""Layers by the clock: their shapes, and crossovers by hand."""

import pytest
import torch

from fourfold.bench.layers import LAYERS, SELF, crossover, measure_layers


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("length", [16, 128])
def test_a_layer_keeps_the_shape_and_learns(name: str, length: int) -> None:
    x = torch.randn(2, length, 8, requires_grad=True)
    y = LAYERS[name](8)(x)
    assert y.shape == x.shape
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_blocks_do_not_see_each_other() -> None:
    x = torch.randn(1, 128, 8, requires_grad=True)
    LAYERS["restricted"](8)(x)[0, 0].sum().backward()
    assert x.grad is not None
    assert x.grad[0, :64].abs().sum() > 0
    assert x.grad[0, 64:].abs().sum() == 0


def test_every_layer_is_timed_at_every_length() -> None:
    times = measure_layers(8, rounds=2, longest=32)
    assert list(times) == [16, 32]
    assert all(len(found[name]) == 2 for found in times.values() for name in LAYERS)


def times(*ratios: list[float]) -> dict[int, dict[str, list[float]]]:
    """Of self-attention by another layer's time, by length from 16 on; one a round."""
    return {16 * 2**i: {SELF: found, "other": [1.0] * len(found)} for i, found in enumerate(ratios)}


def test_a_crossover_lies_between_two_lengths() -> None:
    found = crossover(times([0.25, 0.5], [0.5, 2.0], [2.0, 4.0]), "other")
    assert found == pytest.approx([32 * 2**0.5, 16 * 2**0.5])
    # The last time that it is faster counts.
    assert crossover(times([2.0], [0.5], [2.0]), "other") == pytest.approx([32 * 2**0.5])
    assert crossover(times([2.0], [4.0]), "other") == ["under 16"]
    assert crossover(times([0.5, 0.5], [2.0, 0.5]), "other") == ["over 32"]


def test_blocks_are_slower_or_faster_only_where_there_is_more_than_one() -> None:
    ratios = {16: 1.25, 64: 0.8, 128: 1.25}  # the first two are noise
    found = {n: {SELF: [ratio], "restricted": [1.0]} for n, ratio in ratios.items()}
    assert crossover(found, "restricted") == [64.0]
    found[128][SELF] = [0.5]
    assert crossover(found, "restricted") == ["over 128"]
