"""Statistics of attention heads against loops, and their values under uniform attention."""

import math

import pytest
import torch
from torch import Tensor

from fourfold.analysis.attention_statistics import (
    head_label,
    head_statistics,
    patch_distances,
)

T = 6
IDS = torch.tensor([[3, 5, 3, 7, 5, 3], [1, 2, 3, 4, 2, 6]])


def causal_attention() -> tuple[Tensor, Tensor]:
    """Return random weights (2, 3, T, T) of causal heads, and the allowed pairs."""
    allowed = torch.ones(1, 1, T, T, dtype=torch.bool).tril()
    scores = torch.randn(2, 3, T, T).masked_fill(~allowed, -torch.inf)
    return scores.softmax(-1), allowed


def by_loops(a: Tensor, ids: list[int], separators: list[int]) -> dict[str, float]:
    """Compute all statistics of one head with causal weights (T, T)."""
    rows = [[float(x) for x in row] for row in a]
    entropies = [-sum(x * math.log(x) for x in row if x > 0) for row in rows]
    distances = [sum(x * abs(i - j) for j, x in enumerate(row)) for i, row in enumerate(rows)]
    induction = []
    for i, row in enumerate(rows):
        found = [j + 1 for j in range(i) if ids[j] == ids[i]]
        if found:
            induction.append(sum(row[j] for j in found))
    return {
        "entropy": sum(entropies) / T,
        "first": sum(row[0] for row in rows) / T,
        "separator": sum(row[j] for row in rows for j in separators) / T,
        "distance": sum(distances) / T,
        "previous": sum(rows[i][i - 1] for i in range(1, T)) / (T - 1),
        "self": sum(rows[i][i] for i in range(T)) / T,
        "next": sum(rows[i][i + 1] for i in range(T - 1)) / (T - 1),
        "induction": sum(induction) / len(induction),
    }


def test_statistics_equal_those_of_loops() -> None:
    weights, allowed = causal_attention()
    separators = torch.zeros(2, T, dtype=torch.bool)
    separators[:, [2, 5]] = True
    found = head_statistics(weights, allowed, ids=IDS, separators=separators)
    uniform = allowed[0, 0] / torch.arange(1.0, T + 1)[:, None]
    for row in range(2):
        for head in range(3):
            expected = by_loops(weights[row, head], IDS[row].tolist(), [2, 5])
            null = by_loops(uniform, IDS[row].tolist(), [2, 5])
            assert found.keys() == expected.keys()
            for name, (value, if_uniform) in found.items():
                assert float(value[row, head]) == pytest.approx(expected[name], abs=1e-5), name
                assert float(if_uniform[row, head]) == pytest.approx(null[name], abs=1e-5), name


def test_induction_score_is_one_for_a_head_that_copies() -> None:
    ids = torch.tensor([[4, 9, 1, 4, 9, 1]])
    weights = torch.zeros(1, 1, 6, 6)
    for i in range(6):
        weights[0, 0, i, i - 2 if i > 2 else 0] = 1.0
    allowed = torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()
    assert float(head_statistics(weights, allowed, ids=ids)["induction"].value) == 1.0
    assert "induction" not in head_statistics(weights, allowed, ids=torch.arange(6)[None])


def test_patch_distances_leave_out_tokens_before_the_patches() -> None:
    distances = patch_distances(2, 3, n_prefix=1)
    assert distances[0].isnan().all()
    assert distances[:, 0].isnan().all()
    assert float(distances[1, 6]) == pytest.approx(math.hypot(1, 2))  # opposite corners
    allowed = torch.ones(1, 1, 7, 7, dtype=torch.bool)
    found = head_statistics(torch.full((1, 1, 7, 7), 1 / 7), allowed, distances=distances)
    assert float(found["distance"].value) == pytest.approx(float(distances[1:, 1:].mean()))


@pytest.mark.parametrize(
    ("offset", "label"), [(-1, "previous"), (0, "self"), (1, "next"), (None, "first token")]
)
def test_label_of_a_head_names_the_key_it_attends_to(offset: int | None, label: str) -> None:
    weights = torch.full((1, 1, 8, 8), 0.2 / 7)
    for i in range(8):
        weights[0, 0, i, 0 if offset is None else (i + offset) % 8] = 0.8
    allowed = torch.ones(1, 1, 8, 8, dtype=torch.bool)
    found = head_statistics(weights, allowed)
    pairs = {name: (float(x.value), float(x.uniform)) for name, x in found.items()}
    assert head_label(pairs) == label


def test_uniform_heads_are_broad_and_mixed_heads_have_no_label() -> None:
    assert head_label({"entropy": (2.0, 2.1), "self": (0.2, 0.1)}) == "broad"
    assert head_label({"entropy": (1.0, 2.1), "self": (0.4, 0.1)}) is None
    assert head_label({"entropy": (1.0, 2.1), "induction": (0.59, 0.067)}) == "induction"
    # A share of 1 that the mask enforces is no label.
    assert head_label({"entropy": (0.0, 0.0), "first": (1.0, 1.0)}) is None
