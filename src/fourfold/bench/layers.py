"""One layer by the clock: from which length on another way to let tokens meet is faster.

Vaswani et al. 2017, Table 1 counts operations; here a layer's forward and backward pass is timed,
with its projections, for lengths that double. Layers take turns (see `clock`).
Shapes: B batch, T tokens (n in the table), D width (d), R tokens of a block (r).
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from fourfold.bench.clock import Call, interleave
from fourfold.core.attention import Attention
from fourfold.core.config import TransformerConfig

BATCH, BLOCK, KERNEL, HEAD = 4, 64, 3, 64  # B, r and k of the table, and a head's greatest width
SHORTEST = 16  # tokens
WIDEST = 16  # times the width: the longest
SELF = "self_attention"

Layer = Callable[[Tensor], Tensor]
Times = Mapping[int, Mapping[str, Sequence[float]]]  # length, layer, seconds by round
Round = Mapping[str, Mapping[str, float]]  # of one round: length, layer, seconds


def self_attention(width: int) -> Attention:
    """Every token reads every token; (B, T, D) to (B, T, D)."""
    return Attention(TransformerConfig(d_model=width, n_heads=max(1, width // HEAD)))


def restricted(width: int) -> Layer:
    """Every token reads those of its block of R."""
    attend = self_attention(width)
    return lambda x: attend(x.reshape(-1, min(BLOCK, x.shape[1]), width)).reshape(x.shape)


def lstm(width: int) -> Layer:
    """A state with four gates is carried from token to token (Hochreiter, Schmidhuber 1997)."""
    layer = nn.LSTM(width, width, batch_first=True)
    return lambda x: layer(x)[0]


def gru(width: int) -> Layer:
    """A state with three gates (Cho et al. 2014)."""
    layer = nn.GRU(width, width, batch_first=True)
    return lambda x: layer(x)[0]


def convolutional(width: int) -> Layer:
    """Every token reads itself and its two neighbours."""
    layer = nn.Conv1d(width, width, KERNEL, padding="same")
    return lambda x: layer(x.mT).mT


LAYERS: dict[str, Callable[[int], Layer]] = {
    SELF: self_attention,
    "restricted": restricted,
    "lstm": lstm,
    "gru": gru,
    "convolutional": convolutional,
}


def measure_layers(width: int, rounds: int, longest: int | None = None) -> Times:
    """Time every layer at lengths that double from SHORTEST on.

    Args:
        width: D.
        rounds: How often each is timed.
        longest: T at most; None means WIDEST times the width.
    """
    torch.manual_seed(0)
    layers = {name: build(width) for name, build in LAYERS.items()}
    found, length = {}, SHORTEST
    while length <= (longest or WIDEST * width):
        ways = {name: _pass(layer, length, width) for name, layer in layers.items()}
        found[length] = interleave(ways, rounds, warm=1)
        length *= 2
    return found


def _pass(layer: Layer, length: int, width: int) -> Call:
    x = torch.randn(BATCH, length, width, requires_grad=True)  # (B, T, D)
    return lambda: layer(x).sum().backward()


def crossover(rounds: Sequence[Round], layer: str) -> list[float | str]:
    """The length from which on self-attention is slower than `layer`, one a round that has one.

    Where by the median of the rounds there is none it is one word: under the shortest length, or
    over the longest. In one block the restricted layer is self-attention itself, no slower and no
    faster.

    Args:
        rounds: Of each, seconds by length and layer.
        layer: One of LAYERS.
    """
    same = BLOCK if layer == "restricted" else 0
    curves = [
        # Greater than 0 where self-attention is slower.
        {int(n): math.log(s[SELF] / s[layer]) if int(n) > same else 0.0 for n, s in times.items()}
        for times in rounds
    ]
    if not curves:
        return []
    middle = {n: statistics.median(curve[n] for curve in curves) for n in curves[0]}
    if min(middle.values()) > 0.0:
        return [f"under {min(middle)}"]
    if middle[max(middle)] <= 0.0:
        return [f"over {max(middle)}"]
    found: list[float | str] = [x for curve in curves if (x := _crossing(curve)) is not None]
    return found or [_crossing(middle) or math.nan]


def _crossing(curve: Mapping[int, float]) -> float | None:
    """Where a curve over lengths last leaves what is not above 0, straight in the logarithm.

    None where it is nowhere below, or never leaves.
    """
    lengths = sorted(curve)
    no_slower = [i for i, n in enumerate(lengths) if curve[n] <= 0.0]
    if not no_slower or no_slower[-1] == len(lengths) - 1:
        return None
    last, after = (lengths[no_slower[-1] + shift] for shift in (0, 1))
    share = -curve[last] / (curve[after] - curve[last])
    return float(last * (after / last) ** share)
