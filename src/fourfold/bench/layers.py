"""One layer by the clock: from which length on another way to let tokens meet is faster.

Vaswani et al. 2017, Table 1 counts operations; here a layer's forward and backward pass is timed,
with its projections, for lengths that double. Layers take turns (see `clock`).
Shapes: B batch, T tokens (n in the table), D width (d), R tokens of a block (r).
"""

import math
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


def crossover(times: Times, layer: str) -> list[float | str]:
    """The length from which on self-attention is slower than `layer`, one a round.

    In one block the restricted layer is self-attention itself, no slower and no faster. Between two
    measured lengths the logarithm of the ratio is taken to be straight. Where a round has none, it
    is one word for all: under the shortest length, or over the longest.
    """
    lengths = sorted(times)
    same = BLOCK if layer == "restricted" else 0
    found: list[float | str] = []
    for number in range(len(times[lengths[0]][layer])):
        # Greater than 0 where self-attention is slower.
        ratios = [times[n][SELF][number] / times[n][layer][number] for n in lengths]
        logs = [math.log(r) if n > same else 0.0 for n, r in zip(lengths, ratios, strict=True)]
        no_slower = [i for i, log in enumerate(logs) if log <= 0.0]
        if not no_slower:
            return [f"under {lengths[0]}"]
        last = no_slower[-1]
        if last == len(lengths) - 1:
            return [f"over {lengths[-1]}"]
        share = -logs[last] / (logs[last + 1] - logs[last])
        found.append(lengths[last] * (lengths[last + 1] / lengths[last]) ** share)
    return found
