"""Vaswani et al. 2017, Table 1, by running it: four ways to let T tokens meet, and their growth.

Each layer is its bare products: operations are counted by torch while it runs, dependent steps and
paths on the graph that autograd keeps. A formula is then the one that grows as the counts do.
Shapes: T tokens (n in the table), D width (d), K kernel width (k), R neighbourhood (r).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

PRODUCTS = ("MmBackward", "BmmBackward", "ConvolutionBackward", "MvBackward")


@dataclass(frozen=True)
class Size:
    """n, d, k and r of the table."""

    n: int = 32
    d: int = 16
    k: int = 3
    r: int = 9


def self_attention(x: Tensor, size: Size, depth: int) -> Tensor:
    """Every token reads every token; x (T, D)."""
    return (x @ x.T / math.sqrt(size.d)).softmax(-1) @ x


def recurrent(x: Tensor, size: Size, depth: int) -> Tensor:
    """A state is carried from token to token; x (T, D)."""
    w = torch.full((size.d, size.d), 0.5 / size.d, dtype=x.dtype)
    state, out = torch.zeros_like(x[:1]), []
    for token in x.split(1):
        state = torch.tanh(torch.mm(state, w) + token)
        out.append(state)
    return torch.cat(out)


def convolutional(x: Tensor, size: Size, depth: int) -> Tensor:
    """Every token reads itself and K - 1 before it, K^depth apart (dilated: few layers reach)."""
    w = torch.ones(size.d, size.d, size.k, dtype=x.dtype)
    apart = size.k**depth
    before = F.pad(x.T, (apart * (size.k - 1), 0))  # (D, more T)
    return F.conv1d(before[None], w, dilation=apart)[0].T


def restricted(x: Tensor, size: Size, depth: int) -> Tensor:
    """Every token reads the R tokens around it; x (T, D)."""
    padded = F.pad(x, (0, 0, size.r // 2, (size.r - 1) // 2))
    around = padded.unfold(0, size.r, 1)  # (T, D, R)
    weights = torch.bmm(x[:, None], around).softmax(-1)  # (T, 1, R)
    return torch.bmm(weights, around.mT)[:, 0]


Layer = Callable[[Tensor, Size, int], Tensor]
LAYERS: dict[str, Layer] = {
    "self_attention": self_attention,
    "recurrent": recurrent,
    "convolutional": convolutional,
    "self_attention_restricted": restricted,
}


def _input(size: Size) -> Tensor:
    noise = torch.Generator().manual_seed(0)
    return torch.randn(size.n, size.d, generator=noise, dtype=torch.float64).requires_grad_()


@cache
def operations(layer: Layer, size: Size) -> int:
    """Multiply-adds of the layer's products."""
    with FlopCounterMode(display=False) as counter:
        layer(_input(size), size, 0)
    return int(counter.get_total_flops()) // 2


@cache
def sequential(layer: Layer, size: Size) -> int:
    """The longest chain of products in the layer, each waiting for the one before."""
    x = _input(size)
    return max(_chain(layer(x, size, 0).grad_fn).values())


def _chain(end: Any) -> dict[Any, int]:
    """For each node of autograd's graph below `end`, products on the longest way to the input."""
    found: dict[Any, int] = {}
    stack = [end]
    while stack:
        node = stack[-1]
        below = [child for child, _ in node.next_functions if child is not None]
        if todo := [child for child in below if child not in found]:
            stack += todo
            continue
        own = type(node).__name__.startswith(PRODUCTS)
        found[stack.pop()] = max((found[child] for child in below), default=0) + own
    return found


@cache
def path(layer: Layer, size: Size) -> int:
    """Dependent layers, or steps of one, between the two tokens that are farthest apart."""
    x = _input(size)
    h = x
    for depth in count():
        h = layer(h, size, depth)
        (gradient,) = torch.autograd.grad(h[-1].sum(), x, retain_graph=True)
        if gradient[0].abs().sum() > 0:
            steps = sequential(layer, size) if _carries(layer, size) else 1
            return (depth + 1) * steps
    raise AssertionError("not reached")


def _carries(layer: Layer, size: Size) -> bool:
    """Whether the tokens of a layer wait for one another: its chain grows with their number."""
    longer = Size(2 * size.n, size.d, size.k, size.r)
    return sequential(layer, longer) > sequential(layer, size)


def cost_formula(layer: Layer) -> str:
    """Operations a layer, as powers of n, d, k and r; those that do not matter are left out."""
    powers = {
        name: round(math.log2(operations(layer, doubled) / operations(layer, Size())))
        for name, doubled in _doubled()
    }
    order = ("k", "r", "n", "d")
    factors = [f"{n}^{powers[n]}" if powers[n] > 1 else n for n in order if powers[n]]
    return f"O({' * '.join(factors)})"


def _doubled() -> Iterator[tuple[str, Size]]:
    base = Size()
    for name in ("n", "d", "k", "r"):
        yield name, Size(**{**vars(base), name: 2 * getattr(base, name)})


def sequence_formula(layer: Layer) -> str:
    """How the longest chain of products grows with n."""
    few, many = sequential(layer, Size(n=16)), sequential(layer, Size(n=64))
    return {1: "O(1)", 4: "O(n)"}[round(many / few)]


# Growth: what it is of a size. Kernels and neighbourhoods are odd, so that they have a middle.
GROWTHS: dict[str, Callable[[Size], float]] = {
    "O(1)": lambda s: 1.0,
    "O(n)": lambda s: s.n,
    "O(log_k(n))": lambda s: math.log(s.n, s.k),
    "O(n/r)": lambda s: s.n / s.r,
}
SIZES = tuple(Size(n=n, d=4, k=k, r=r) for n in (27, 81, 243) for k, r in ((3, 5), (5, 9)))


def path_formula(layer: Layer) -> str:
    """The growth that the longest path follows most closely, over several sizes."""

    def spread(name: str) -> float:
        ratios = [path(layer, size) / GROWTHS[name](size) for size in SIZES]
        return max(ratios) / min(ratios)

    return min(GROWTHS, key=spread)
