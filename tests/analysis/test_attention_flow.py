"""Rollout and gradient-weighted attention against brute force."""

from itertools import product

import numpy as np
import torch

from fourfold.analysis.attention_flow import relevance, rollout, with_residual
from tests.fixtures.tiny_models import build, tokens


def random_maps(n_layers: int, n_tokens: int) -> np.ndarray:
    scores = np.random.default_rng(0).normal(size=(n_layers, n_tokens, n_tokens))
    weights = np.exp(scores)
    return weights / weights.sum(-1, keepdims=True)


def test_rollout_is_the_sum_over_all_paths() -> None:
    maps = random_maps(3, 4)
    mixed = with_residual(maps)
    expected = np.zeros((4, 4))
    for path in product(range(4), repeat=4):  # from the output token to the input token
        steps = [mixed[2 - i][path[i], path[i + 1]] for i in range(3)]
        expected[path[0], path[3]] += np.prod(steps)
    found = rollout(maps)
    np.testing.assert_allclose(found[-1], expected)
    np.testing.assert_allclose(found.sum(-1), 1.0)
    np.testing.assert_allclose(found[0], (maps[0] + np.eye(4)) / 2)


def test_relevance_equals_that_of_finite_differences() -> None:
    model, ids = build("causal"), tokens(1, 3)
    blocks = [block.attn for block in model.stack.blocks]

    def output() -> torch.Tensor:
        return model(ids)[:, -1, 4]

    expected = torch.eye(3, dtype=torch.float64)
    for attn in blocks:
        kept = []
        attn.normalize = lambda scores, kept=kept: kept.append(scores.softmax(-1)) or kept[-1]
        base = float(output().detach())
        weights = kept[0].detach()
        gradient = torch.zeros_like(weights)
        for place in product(range(3), range(3), range(3)):
            changed = weights.clone()
            changed[0][place] += 1e-6
            attn.normalize = lambda _, changed=changed: changed
            gradient[0][place] = (float(output().detach()) - base) / 1e-6
        del attn.normalize
        expected = expected + (gradient * weights).clamp(min=0).mean(1)[0] @ expected
    found = relevance(model, output)
    torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-6)
    assert not any("normalize" in vars(attn) for attn in blocks)
    assert all(parameter.grad is None for parameter in model.parameters())
