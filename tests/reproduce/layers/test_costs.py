"""Counted costs of whole layers, compared with formulas."""

import pytest

from fourfold.reproduce.layers.costs import (
    equal_length,
    layer_bytes,
    layer_chain,
    layer_flops,
    layer_reach,
)
from fourfold.reproduce.layers.timing import LAYERS, WINDOW

N, D = 24, 16
ROW = 2 * D * D  # FLOPs of one product of d x d for one token


@pytest.mark.parametrize(
    ("name", "flops", "chain", "reach"),
    [
        ("self_attention", 4 * ROW * N + 2 * 2 * N * N * D, 4, N),
        ("rnn", 2 * ROW * N, N, N),
        ("gru", 6 * ROW * N, N, N),
        ("lstm", 8 * ROW * N, N, N),
        ("convolutional", 3 * ROW * N, 1, 3),
    ],
)
def test_counts_equal_the_formulas(name: str, flops: int, chain: int, reach: int) -> None:
    assert layer_flops(name, N, D) == flops
    assert layer_chain(name, N, D) == chain
    assert layer_reach(name, N, D) == reach


def test_restricted_attention_skips_keys() -> None:
    n, keys = 512, 2 * WINDOW - 1
    slices = 2 * (32 + WINDOW - 1) + 14 * (32 + keys - 1)  # keys of the outer and inner slices
    assert layer_flops("windowed", n, D) == 4 * ROW * n + 2 * 2 * 32 * slices * D
    assert layer_reach("windowed", n, D) == keys
    assert layer_chain("windowed", n, D) == 4


def test_lengths_of_equal_cost_are_multiples_of_the_width() -> None:
    assert equal_length("lstm", N, D) == pytest.approx(2 * D)
    assert equal_length("gru", N, D) == pytest.approx(D)
    assert equal_length("rnn", N, D) == equal_length("convolutional", N, D) == "always"
    assert equal_length("self_attention", N, D) == "never"


@pytest.mark.parametrize("name", sorted(LAYERS.keys() - {"windowed"}))
def test_stored_bytes_per_token_do_not_depend_on_the_length(name: str) -> None:
    assert layer_bytes(name, 64, D) == layer_bytes(name, 128, D) >= 4 * D


def test_restricted_attention_stores_no_scores_of_long_sequences() -> None:
    """From 2,048 tokens on, the weights of all slices are computed again in the backward pass."""
    assert layer_bytes("windowed", 2048, D) < 4 * 8 * D
