"""Counted costs of whole layers: FLOPs, dependent products, visible tokens and stored bytes.

Vaswani et al. 2017, Table 1, leaves out the projections of a layer and constant factors. This
module counts them in the layers that `timing` times. `name` is a key of `timing.LAYERS` or `CELLS`.
The input has one sequence of n tokens of width d.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fourfold.core.attention import attention_backend
from fourfold.reproduce.layers import timing
from fourfold.reproduce.layers.complexity import longest_chain

# The products of torch's LSTM are not visible to its FLOP counter, those of a loop over cells are.
CELLS = {"rnn": nn.RNNCell, "gru": nn.GRUCell, "lstm": nn.LSTMCell}


def cell_loop(name: str, width: int) -> timing.Layer:
    """Return a recurrent layer (1, n, d) -> (1, n, d) in fp64 that calls a cell once per token."""
    cell: Any = CELLS[name](width, width, dtype=torch.float64)

    def layer(x: Tensor) -> Tensor:
        state, out = None, []
        for token in x.unbind(1):
            state = cell(token, state)
            out.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(out, 1)

    return layer


def _run(name: str, n: int, d: int, backend: str = "naive") -> tuple[Tensor, Tensor, int]:
    """Run a layer on random input; return input (1, n, d), output (1, n, d) and number of FLOPs."""
    torch.manual_seed(0)
    is_recurrent = name in CELLS
    layer = cell_loop(name, d) if is_recurrent else timing.LAYERS[name](d)
    # In fp32, the gradient of a recurrent layer would underflow over a few hundred tokens.
    x = torch.randn(1, n, d, dtype=torch.float64 if is_recurrent else torch.float32)
    x.requires_grad_()
    with FlopCounterMode(display=False) as counter, attention_backend(backend):
        y = layer(x)
    return x, y, int(counter.get_total_flops())


@cache
def layer_flops(name: str, n: int, d: int) -> int:
    """Count the FLOPs of the matrix products in a forward pass of a layer."""
    # The backend auto has a kernel that skips the keys outside a window. Without a window, the
    # backend has another kernel, which torch's FLOP counter does not support.
    return _run(name, n, d, "auto" if name == "windowed" else "naive")[2]


def layer_chain(name: str, n: int, d: int) -> int:
    """Count the matrix products on the longest chain of dependent products in a forward pass."""
    return longest_chain(_run(name, n, d)[1])


def layer_reach(name: str, n: int, d: int) -> int:
    """Count the input tokens that the output of one token depends on.

    An output depends on an input token if its gradient with respect to the token is not 0. The
    count is computed for the middle and for the last token, and the larger count is returned.
    """
    x, y, _ = _run(name, n, d)
    counts = []
    for output in (n // 2, n - 1):
        (gradient,) = torch.autograd.grad(y[0, output].sum(), x, retain_graph=True)
        counts.append(int(gradient[0].any(-1).sum()))
    return max(counts)


def layer_bytes(name: str, n: int, d: int) -> float:
    """Count the bytes per token that autograd stores in the forward pass of a layer in fp32.

    The bytes are counted for n and for 2 n tokens, and their difference is divided by n. Recurrent
    layers are those of torch, and attention has the backend auto, as in `timing`.
    """
    layer = timing.LAYERS[name](d)
    counts = []
    for length in (n, 2 * n):
        stored: dict[int, int] = {}

        def store(tensor: Tensor, stored: dict[int, int] = stored) -> Tensor:
            storage = tensor.untyped_storage()
            stored[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(store, lambda tensor: tensor):
            output = layer(torch.randn(1, length, d, requires_grad=True))
        counts.append(sum(stored.values()))
        del output
    return (counts[1] - counts[0]) / n


def equal_length(name: str, n: int, d: int) -> float | str:
    """Compute the number of tokens from which self-attention takes more FLOPs than another layer.

    FLOPs are counted for n and 2 n tokens and extrapolated; those of the other layer are assumed to
    be proportional to the number of tokens. The result is "always" if self-attention takes more at
    any length, and "never" for self-attention itself.
    """
    if name == timing.SELF:
        return "never"
    per_token = (layer_flops(name, 2 * n, d) - layer_flops(name, n, d)) / n
    at_n, at_2n = (layer_flops(timing.SELF, size, d) / size for size in (n, 2 * n))
    slope = (at_2n - at_n) / n
    length = n + (per_token - at_n) / slope
    return length if length > 0 else "always"


# Functions of the name, the tokens and the width of a layer.
LAYER_COSTS: tuple[Any, ...] = layer_flops, layer_chain, layer_reach, layer_bytes, equal_length
