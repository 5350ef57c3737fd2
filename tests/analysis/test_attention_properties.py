"""Statistics of attention scores and properties of the rungs, against independent numbers."""

import math
import statistics
from typing import Any

import pytest
import torch

from fourfold.analysis.attention_properties import (
    LayerProperties,
    layer_properties,
    score_statistics,
)
from fourfold.core.attention import attention_weights
from fourfold.models import LadderLM, LadderLMConfig

# Computed with numpy from a few thousand queries, by width.
VARIANCE = {4: 4.1, 64: 62.7, 512: 515.0}
UNSCALED = {4: (0.43, 1.76, 0.32), 64: (0.84, 0.41, 0.175), 512: (0.945, 0.135, 0.074)}
SCALED = (0.24, 2.36, 0.30)  # at every width
# Computed with numpy from one sequence of 32 tokens, by width: unscaled and scaled.
SELF_WEIGHT = {16: (0.93, 0.49), 64: (1.0, 0.977), 256: (1.0, 0.99999)}


def rung(name: str, seed: int = 0, **options: Any) -> LayerProperties:
    torch.manual_seed(seed)
    config = LadderLMConfig(
        rung=name,  # type: ignore[arg-type]
        d_model=16,
        n_layers=1,
        n_heads=4,
        d_ff=64,
        vocab_size=5,
        init="vaswani",
        **options,
    )
    return layer_properties(LadderLM(config).double().eval().stack, 16, seed)


@pytest.mark.parametrize("width", [4, 64, 512])
@pytest.mark.parametrize("is_scaled", [False, True])
def test_score_statistics_by_width(width: int, is_scaled: bool) -> None:
    scale = width**-0.5 if is_scaled else 1.0
    found = score_statistics(width, scale)
    # 16,000 scores; scores of one query share the query's norm.
    assert found.variance / scale**2 == pytest.approx(VARIANCE[width], rel=0.06)
    wanted = SCALED if is_scaled else UNSCALED[width]
    # Two rounded figures of 1,000 or more queries, whose standard errors are below 0.01.
    largest, entropy, jacobian = wanted
    assert found.largest_weight == pytest.approx(largest, abs=0.02)
    assert found.entropy == pytest.approx(entropy, abs=0.04)
    assert found.jacobian == pytest.approx(jacobian, abs=0.01)
    assert found.entropy < math.log(16)


@pytest.mark.parametrize("width", SELF_WEIGHT)
@pytest.mark.parametrize("is_scaled", [False, True])
def test_token_mixes_with_others_only_at_a_small_width(width: int, is_scaled: bool) -> None:
    scale = width**-0.5 if is_scaled else 1.0
    wanted = SELF_WEIGHT[width][is_scaled]
    x = torch.randn(64, 32, width, dtype=torch.float64)
    single = attention_weights(x, x, scale=scale).diagonal(dim1=1, dim2=2).mean(1)
    spread = float(single.std())  # of the mean weight in one sequence
    found = score_statistics(width, scale).self_weight
    assert found == pytest.approx(wanted, abs=3 * spread + 5e-4)


def test_jacobian_norm_equals_autograd() -> None:
    scores = torch.randn(16, dtype=torch.float64)
    weights = scores.softmax(0)
    derivative: Any = torch.autograd.functional.jacobian(lambda s: s.softmax(0), scores)
    squares = weights.pow(2).sum()
    formula = (squares - 2 * weights.pow(3).sum() + squares**2).sqrt()
    torch.testing.assert_close(derivative.norm(), formula)


@pytest.mark.parametrize(
    "name", ["parameter_free", "projections", "scaled", "heads", "residual", "norm", "full"]
)
def test_attention_is_equivariant_and_not_invariant(name: str) -> None:
    found = rung(name)
    assert found.equivariance < 1e-13
    assert found.pooled_change < 1e-13
    assert found.equivariance_positions > 0.1
    assert found.equivariance_causal > 0.01
    assert found.change > 0.1


@pytest.mark.parametrize("name", ["none", "mlp"])
def test_layer_without_attention_is_equivariant_under_a_causal_mask(name: str) -> None:
    found = rung(name)
    assert found.equivariance_causal < 1e-13
    assert found.equivariance_positions > 0.1


def test_self_attention_is_not_linear_in_its_input() -> None:
    assert rung("none").nonlinearity == 0.0
    values = [rung("parameter_free", seed).nonlinearity for seed in range(8)]
    spread = statistics.stdev(values)
    assert statistics.fmean(values) == pytest.approx(0.92, abs=3 * spread)
    assert min(values) > 0.1


def test_seed_determines_the_numbers() -> None:
    assert rung("scaled") == rung("scaled")
    assert rung("scaled", 1) != rung("scaled", 2)
    assert score_statistics(8, 1.0, 1) != score_statistics(8, 1.0, 2)
