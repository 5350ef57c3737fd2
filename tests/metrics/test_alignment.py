"""Alignment error rate of hand-computed cases, its baselines, and links from attention weights."""

import pytest
import torch

from fourfold.metrics.alignment import (
    AlignmentErrorRate,
    ReferenceLinks,
    diagonal_links,
    links_from_weights,
)


def test_error_rate_of_a_hand_computed_case() -> None:
    # Two sentences: |A| = 3 + 2, |S| = 2 + 2, |A and S| = 1 + 2, |A and P| = 2 + 2.
    first = ReferenceLinks(frozenset({(0, 0), (1, 1)}), frozenset({(0, 0), (1, 1), (2, 1)}))
    second = ReferenceLinks(*[frozenset({(0, 1), (1, 0)})] * 2)
    metric = AlignmentErrorRate()
    metric.update(0, [(0, 0), (2, 1), (2, 2)], first)
    metric.update(1, [(0, 1), (1, 0)], second)
    metric.update(1, [(0, 1), (1, 0)], second)  # a pair that two ranks have stored
    expected = {"aer": 1 - (3 + 4) / (5 + 4), "precision": 4 / 5, "recall": 3 / 4}
    assert metric.compute() == pytest.approx(expected)


def test_perfect_links_have_the_error_rate_0() -> None:
    metric = AlignmentErrorRate()
    links = diagonal_links(4, 4)
    assert links == {(0, 0), (1, 1), (2, 2), (3, 3)}
    reference = ReferenceLinks(frozenset(links), frozenset(links))
    metric.update(0, links, reference)
    assert metric.compute()["aer"] == 0.0


def test_diagonal_covers_the_source() -> None:
    assert diagonal_links(6, 3) == {(1, 0), (3, 1), (5, 2)}
    assert diagonal_links(2, 4) == {(0, 0), (0, 1), (1, 2), (1, 3)}


def test_weights_of_pieces_are_summed_to_words() -> None:
    weights = torch.tensor(
        [
            [0.4, 0.25, 0.35, 0.0],  # largest for piece 0, but for word 1 after the sum
            [0.1, 0.2, 0.1, 0.6],  # EOS has the largest weight
            [0.5, 0.3, 0.0, 0.2],
            [0.9, 0.1, 0.0, 0.0],  # the row of EOS
        ]
    )
    source, target = [0, 1, 1, -1], [0, 1, 1, -1]
    assert links_from_weights(weights, source, target) == {(1, 0), (0, 1)}
    weights[0] = 0.0
    assert links_from_weights(weights, source, target) == {(0, 1)}
