"""Numerical properties of attention: statistics of the scores, permutations, non-linearity.

All inputs are drawn from N(0, 1) in float64. Shapes: N samples, T tokens, K keys of a query, D
width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from fourfold.core.attention import attention_weights
from fourfold.core.masks import Mask
from fourfold.layers.positions import sinusoidal

N_TOKENS = 32  # T
N_KEYS = 16  # K
N_QUERIES = 1000  # N of the statistics of a query
N_SEQUENCES = 64  # N of the weights of a token on itself


@dataclass(frozen=True)
class ScoreStatistics:
    """Statistics of attention scores and weights for random queries and keys.

    The scores are scale * q k^T. The weights are the softmax of the scores over K keys.

    Args:
        variance: Variance of the scores.
        largest_weight: Mean of the largest weight of a query.
        entropy: Mean entropy of the weights of a query in nats; at most ln(K).
        jacobian: Mean Frobenius norm of the derivative of the weights with respect to the scores.
        self_weight: Mean weight of a token on itself in softmax(scale * x x^T), over T tokens.
    """

    variance: float
    largest_weight: float
    entropy: float
    jacobian: float
    self_weight: float


@cache
def score_statistics(width: int, scale: float, seed: int = 0) -> ScoreStatistics:
    """Measure the statistics of the scores of random queries and keys of width D = `width`."""
    noise = torch.Generator().manual_seed(seed)
    q = torch.randn(N_QUERIES, 1, width, generator=noise, dtype=torch.float64)
    k = torch.randn(N_QUERIES, N_KEYS, width, generator=noise, dtype=torch.float64)
    scores = scale * q @ k.mT  # (N, 1, K)
    weights = attention_weights(q, k, scale=scale)  # (N, 1, K)
    squares = weights.pow(2).sum(-1)
    # The derivative is diag(a) - a a^T, for weights a.
    jacobian = (squares - 2 * weights.pow(3).sum(-1) + squares.pow(2)).clamp(min=0).sqrt()
    x = torch.randn(N_SEQUENCES, N_TOKENS, width, generator=noise, dtype=torch.float64)
    return ScoreStatistics(
        variance=float(scores.var()),
        largest_weight=float(weights.amax(-1).mean()),
        entropy=float(-torch.xlogy(weights, weights).sum(-1).mean()),
        jacobian=float(jacobian.mean()),
        self_weight=float(attention_weights(x, x, scale=scale).diagonal(dim1=-2, dim2=-1).mean()),
    )


@dataclass(frozen=True)
class LayerProperties:
    """Deviations of a map f of token vectors from permutation symmetry and from linearity.

    Each field is the largest absolute value of a matrix or vector. X is a random input (T, D), and
    P is a random permutation of the tokens.

    Args:
        equivariance: Largest value of f(PX) - P f(X), which is 0 if f is equivariant.
        equivariance_positions: Largest value of f(PX + S) - P f(X + S), with sinusoidal positions S
            (T, D).
        equivariance_causal: Largest value of g(PX) - P g(X), where g is f with a causal mask.
        change: Largest value of f(PX) - f(X), which is 0 if f is invariant.
        pooled_change: Largest value of the mean over tokens of f(PX) - f(X).
        nonlinearity: Largest value of f(2X) - 2 f(X), which is 0 if f is linear.
    """

    equivariance: float
    equivariance_positions: float
    equivariance_causal: float
    change: float
    pooled_change: float
    nonlinearity: float


@torch.no_grad()
def layer_properties(
    layer: Callable[[Tensor, Mask], Tensor], width: int, seed: int = 0
) -> LayerProperties:
    """Measure the deviations of a layer from permutation symmetry and from linearity.

    Args:
        layer: Function from x (1, T, D) float64 and a `Mask` to outputs (1, T, D), such as a
            `Stack`.
        width: Width D, which is even.
    """
    noise = torch.Generator().manual_seed(seed)
    x = torch.randn(1, N_TOKENS, width, generator=noise, dtype=torch.float64)
    order = torch.randperm(N_TOKENS, generator=noise)
    positions = sinusoidal(N_TOKENS, width).weight.to(x.dtype)  # (T, D)

    def permuted(offset: Tensor | float = 0.0, mask: Mask = Mask()) -> tuple[Tensor, Tensor]:
        return layer(x[:, order] + offset, mask), layer(x + offset, mask)

    def error(offset: Tensor | float = 0.0, mask: Mask = Mask()) -> float:
        after, before = permuted(offset, mask)
        return float((after - before[:, order]).abs().max())

    after, before = permuted()
    return LayerProperties(
        equivariance=error(),
        equivariance_positions=error(offset=positions),
        equivariance_causal=error(mask=Mask(causal=True)),
        change=float((after - before).abs().max()),
        pooled_change=float((after - before).mean(1).abs().max()),
        nonlinearity=float((layer(2 * x, Mask()) - 2 * before).abs().max()),
    )
