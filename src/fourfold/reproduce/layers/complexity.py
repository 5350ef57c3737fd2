"""Complexity, sequential operations and path length of four layer types, obtained by running them.

The module reproduces Vaswani et al. 2017, Table 1. Each layer consists of its matrix products only,
without projections, and maps (T, D) to (T, D). Three numbers are measured:

- Operations: multiply-adds of the matrix products, counted by torch's FLOP counter.
- Sequential operations: longest chain of dependent matrix products in autograd's graph.
- Path length: number of layers that are needed to connect two tokens, found by gradients.

The formula of each number, such as O(n^2 * d), is derived from the values for several sizes.

Shapes:
    T tokens (n in the table), D width (d), K kernel width (k), R tokens of a neighbourhood (r).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

PRODUCTS = ("MmBackward", "AddmmBackward", "BmmBackward", "ConvolutionBackward", "MvBackward")


@dataclass(frozen=True)
class Size:
    """Sizes of the layers, by their names in the formulas of Vaswani et al. 2017, Table 1."""

    n: int = 32  # tokens
    d: int = 16  # width
    k: int = 3  # kernel width of the convolution, in tokens
    r: int = 9  # tokens that restricted self-attention attends to


def self_attention(x: Tensor, size: Size, depth: int) -> Tensor:
    """Apply self-attention over all tokens to x (T, D).

    There are no projections: `x` holds the queries, the keys and the values. `size.d` is the width
    D, by whose square root the scores are divided. `depth` is ignored.
    """
    return (x @ x.T / math.sqrt(size.d)).softmax(-1) @ x


def recurrent(x: Tensor, size: Size, depth: int) -> Tensor:
    """Apply a recurrent layer with tanh to x (T, D).

    The layer adds each token to the product of the previous state and a matrix (D, D). `size.d` is
    the width D. `depth` is ignored.
    """
    w = torch.full((size.d, size.d), 0.5 / size.d, dtype=x.dtype)
    state = torch.zeros_like(x[:1])
    states = accumulate(x.split(1), lambda h, token: (h @ w + token).tanh(), initial=state)
    return torch.cat(list(states)[1:])


def convolutional(x: Tensor, size: Size, depth: int) -> Tensor:
    """Apply a causal convolution of kernel width K with dilation K^depth to x (T, D)."""
    w = torch.ones(size.d, size.d, size.k, dtype=x.dtype)
    dilation = size.k**depth
    padded = F.pad(x.T, (dilation * (size.k - 1), 0))  # (D, T + padding)
    return F.conv1d(padded[None], w, dilation=dilation)[0].T


def restricted(x: Tensor, size: Size, depth: int) -> Tensor:
    """Apply self-attention over the R = `size.r` nearest tokens of each token to x (T, D).

    The R tokens include the token itself. `depth` is ignored.
    """
    neighbours = F.pad(x, (0, 0, size.r // 2, (size.r - 1) // 2)).unfold(0, size.r, 1)  # (T, D, R)
    weights = torch.bmm(x[:, None], neighbours).softmax(-1)  # (T, 1, R)
    return torch.bmm(weights, neighbours.mT)[:, 0]


# Function of the input (T, D), the sizes, and the depth, the number of layers below this layer.
Layer = Callable[[Tensor, Size, int], Tensor]
LAYERS: dict[str, Layer] = {
    layer.__name__: layer for layer in (self_attention, recurrent, convolutional, restricted)
}


def _input(size: Size) -> Tensor:
    """Return a random input (T, D) in float64 that requires a gradient."""
    noise = torch.Generator().manual_seed(0)
    return torch.randn(size.n, size.d, generator=noise, dtype=torch.float64).requires_grad_()


@cache
def operations(layer: Layer, size: Size) -> int:
    """Count the multiply-adds of the matrix products in one forward pass of a layer."""
    with FlopCounterMode(display=False) as counter:
        layer(_input(size), size, 0)
    return int(counter.get_total_flops()) // 2


@cache
def sequential(layer: Layer, size: Size) -> int:
    """Count the sequential operations in one forward pass of a layer.

    They are the matrix products on the longest chain in which each product needs the result of the
    preceding product.
    """
    return longest_chain(layer(_input(size), size, 0))


def longest_chain(result: Tensor) -> int:
    """Return the maximum number of matrix products on a path from `result` to an input.

    The paths are those in the graph that autograd has recorded for `result`.
    """
    output: Any = result.grad_fn
    lengths: dict[Any, int] = {}  # products on the longest path from each node to the input
    stack = [output]
    while stack:
        below = [child for child, _ in stack[-1].next_functions if child is not None]
        if todo := [child for child in below if child not in lengths]:
            stack += todo
            continue
        node = stack.pop()
        own = type(node).__name__.startswith(PRODUCTS)
        lengths[node] = max((lengths[child] for child in below), default=0) + own
    return lengths[output]


@cache
def path(layer: Layer, size: Size) -> int:
    """Count the layers that are needed to connect the first token with the last token.

    The count is the smallest number of stacked layers for which the output of the last token
    depends on the input of the first token. It is the maximum path length of Table 1. For a
    recurrent layer, the count is the number of recurrent steps instead.
    """
    x = _input(size)
    h = layer(x, size, 0)
    depth = 1
    while not torch.autograd.grad(h[-1].sum(), x, retain_graph=True)[0][0].any():
        h = layer(h, size, depth)
        depth += 1
    # In a recurrent layer, the chain of dependent products grows with the number of tokens.
    steps = sequential(layer, size)
    is_recurrent = sequential(layer, replace(size, n=2 * size.n)) > steps
    return depth * steps if is_recurrent else depth


def cost_formula(layer: Layer) -> str:
    """Derive the formula of the number of multiply-adds of a layer, such as O(n^2 * d).

    Each of the sizes k, r, n and d is doubled in turn. The factor by which the number of
    multiply-adds grows yields the exponent of the size.
    """
    base = Size()
    factors = []
    for name in ("k", "r", "n", "d"):
        doubled = replace(base, **{name: 2 * getattr(base, name)})
        power = round(math.log2(operations(layer, doubled) / operations(layer, base)))
        if power:
            factors.append(f"{name}^{power}" if power > 1 else name)
    return f"O({' * '.join(factors)})"


# Candidate formulas of `growth`. Kernel widths and neighbourhoods are odd.
GROWTHS: dict[str, Callable[[Size], float]] = {
    "O(1)": lambda s: 1.0,
    "O(n)": lambda s: s.n,
    "O(log_k(n))": lambda s: math.log(s.n, s.k),
    "O(n/r)": lambda s: s.n / s.r,
}
SIZES = tuple(Size(n=n, d=4, k=k, r=r) for n in (27, 81, 243) for k, r in ((3, 5), (5, 9)))


def growth(count: Callable[[Layer, Size], int], layer: Layer) -> str:
    """Select the formula of `GROWTHS` by which the counts over `SIZES` have the least spread."""

    def spread(name: str) -> float:
        ratios = [count(layer, size) / GROWTHS[name](size) for size in SIZES]
        return max(ratios) / min(ratios)

    return min(GROWTHS, key=spread)
