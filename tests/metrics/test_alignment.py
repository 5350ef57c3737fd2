"""Alignment error rate of hand-computed cases, its baselines, and links from attention weights."""

import random
from pathlib import Path

import pytest
import torch

from fourfold.errors import InputError
from fourfold.metrics.alignment import (
    AlignmentErrorRate,
    ReferenceLinks,
    count_links,
    count_uniform_links,
    diagonal_links,
    links_from_weights,
    read_links,
)


def test_error_rate_of_a_hand_computed_case() -> None:
    # Two sentences: |A| = 3 + 2, |S| = 2 + 2, |A and S| = 1 + 2, |A and P| = 2 + 2.
    first = ReferenceLinks(frozenset({(0, 0), (1, 1)}), frozenset({(0, 0), (1, 1), (2, 1)}))
    second = ReferenceLinks(*[frozenset({(0, 1), (1, 0)})] * 2)
    metric = AlignmentErrorRate()
    metric.update(0, count_links([(0, 0), (2, 1), (2, 2)], first))
    metric.update(1, count_links([(0, 1), (1, 0)], second))
    metric.update(1, count_links([(0, 1), (1, 0)], second))  # a pair that two ranks have stored
    expected = {"aer": 1 - (3 + 4) / (5 + 4), "precision": 4 / 5, "recall": 3 / 4}
    assert metric.compute() == pytest.approx(expected)


def test_perfect_links_have_the_error_rate_0() -> None:
    metric = AlignmentErrorRate()
    links = diagonal_links(4, 4)
    assert links == {(0, 0), (1, 1), (2, 2), (3, 3)}
    reference = ReferenceLinks(frozenset(links), frozenset(links))
    metric.update(0, count_links(links, reference))
    assert metric.compute()["aer"] == 0.0


def test_diagonal_covers_the_source() -> None:
    assert diagonal_links(6, 3) == {(1, 0), (3, 1), (5, 2)}
    assert diagonal_links(2, 4) == {(0, 0), (0, 1), (1, 2), (1, 3)}


def test_uniform_baseline_is_the_mean_over_random_links() -> None:
    reference = ReferenceLinks(frozenset({(0, 0), (2, 1)}), frozenset({(0, 0), (2, 1), (1, 2)}))
    uniform, drawn = AlignmentErrorRate(), AlignmentErrorRate()
    uniform.update(0, count_uniform_links(3, 4, reference))
    random.seed(0)
    for row in range(5000):
        links = [(random.randrange(3), t) for t in range(4)]
        drawn.update(row, count_links(links, reference))
    for name, value in uniform.compute().items():
        assert drawn.compute()[name] == pytest.approx(value, abs=0.02)


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


def test_links_are_read_and_reversed(tmp_path: Path) -> None:
    path = tmp_path / "links"
    path.write_text("1-2 3p1 \n\n2-2\n")
    assert read_links(str(path), first_index=1) == [
        ReferenceLinks(frozenset({(0, 1)}), frozenset({(0, 1), (2, 0)})),
        ReferenceLinks(frozenset(), frozenset()),
        ReferenceLinks(frozenset({(1, 1)}), frozenset({(1, 1)})),
    ]
    assert read_links(str(path), reverse=True)[0].possible == {(2, 1), (1, 3)}


@pytest.mark.parametrize("line", ["1-2 3:4", "0-1"])
def test_bad_links_name_the_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "links"
    path.write_text(f"1-1\n{line}\n")
    with pytest.raises(InputError, match="links:2: the line must hold links such as 3-4"):
        read_links(str(path), first_index=1)
