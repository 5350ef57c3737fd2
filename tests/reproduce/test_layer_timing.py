"""Layers by the clock: their shapes, and crossovers by hand."""

import pytest
import torch

from fourfold.reproduce.layer_timing import LAYERS, SELF, crossover, measure_layers


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("length", [16, 128])
def test_a_layer_keeps_the_shape_and_learns(name: str, length: int) -> None:
    x = torch.randn(2, length, 8, requires_grad=True)
    y = LAYERS[name](8)(x)
    assert y.shape == x.shape
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("length", [100, 300])
def test_restricted_attention_sees_its_window_only(length: int) -> None:
    x = torch.randn(1, length, 8, requires_grad=True)
    LAYERS["restricted"](8)(x)[0, 50].sum().backward()
    assert x.grad is not None
    seen = x.grad[0].any(-1).nonzero().flatten().tolist()
    assert seen == list(range(50 - 31, 50 + 32))


def test_every_layer_is_timed_at_every_length() -> None:
    times = measure_layers(8, rounds=2, longest=32)
    assert [list(found) for found in times] == [["16", "32"]] * 2
    assert all(found[length].keys() == LAYERS.keys() for found in times for length in found)


def rounds(*ratios: list[float]) -> list[dict[str, dict[str, float]]]:
    """Self-attention's time at 16, 32, ... tokens, one a round; another layer's is 1."""
    return [
        {
            str(16 * 2**i): {SELF: ratio, "other": 1.0, "restricted": 1.0}
            for i, ratio in enumerate(found)
        }
        for found in zip(*ratios, strict=True)
    ]


def test_a_crossover_lies_between_two_lengths() -> None:
    found = crossover(rounds([0.25, 0.5], [0.5, 2.0], [2.0, 4.0]), "other")
    assert found == pytest.approx([32 * 2**0.5, 16 * 2**0.5])
    # The last time that it is faster counts.
    assert crossover(rounds([2.0], [0.5], [2.0]), "other") == pytest.approx([32 * 2**0.5])
    assert crossover([], "other") == []


def test_where_there_is_no_crossover_is_the_median_s_to_say() -> None:
    assert crossover(rounds([2.0], [4.0]), "other") == ["under 16"]
    assert crossover(rounds([2.0, 2.0, 0.9], [4.0, 4.0, 4.0]), "other") == ["under 16"]
    assert crossover(rounds([0.5, 0.5, 0.5], [2.0, 0.5, 0.5]), "other") == ["over 32"]
    # A round without one has no say where most have one.
    found = crossover(rounds([0.5, 0.5, 2.0], [2.0, 2.0, 2.0]), "other")
    assert found == pytest.approx([16 * 2**0.5] * 2)


def test_window_is_slower_or_faster_only_where_it_does_not_reach_all_tokens() -> None:
    noise = [[1.25], [0.8]]
    assert crossover(rounds(*noise, [1.25]), "restricted") == [32.0]
    assert crossover(rounds(*noise, [0.5]), "restricted") == ["over 64"]
