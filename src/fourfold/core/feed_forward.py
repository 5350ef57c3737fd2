"""Linear layers, and the feed-forward layer of a transformer block with its activations.

Shapes: B batch, T tokens, D model width.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourfold.core.edits import Edits
from fourfold.kernels.cpu_decoding import linear, packed_weights
from fourfold.kernels.dropout import Dropout


class Linear(nn.Linear):
    """`nn.Linear` that decodes on a CPU from a faster copy of its matrix (see `decode_layout`).

    Example:
        >>> x, layer = torch.ones(1, 2), Linear(2, 1)
        >>> torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
        True
    """

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to x (..., K)."""
        if torch.compiler.is_compiling() or packed_weights.get() is None:
            return F.linear(x, self.weight, self.bias)
        return linear(x, self.weight, self.bias)


def cast_once(x: Tensor) -> Tensor:
    """Convert the input of several matrix products to their data type under autocast.

    Otherwise, each product would convert it, keep a copy of it, and convert its gradient back.

    Example:
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     cast_once(torch.ones(2)).dtype
        torch.bfloat16
    """
    device = x.device.type
    if x.is_meta or x.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return x  # autocast has no device "meta", and leaves fp64 as it is
    return x.to(torch.get_autocast_dtype(device))


def quick_gelu(x: Tensor) -> Tensor:
    """Compute x * sigmoid(1.702 x), an approximation of GELU (Hendrycks and Gimpel 2016).

    Example:
        >>> x = torch.tensor([-1.0, 0.0, 1.0])
        >>> torch.allclose(quick_gelu(x), F.gelu(x), atol=0.02)
        True
    """
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,  # Vaswani et al. 2017, eq. 2
    "gelu": F.gelu,  # Hendrycks and Gimpel 2016, exact
    "gelu_tanh": partial(F.gelu, approximate="tanh"),  # GPT-2, original BERT
    "quick_gelu": quick_gelu,  # CLIP
    "silu": F.silu,  # Elfwing et al. 2017; in a gated layer: SwiGLU, Shazeer 2020
}


class FeedForward(nn.Module):
    """Two matrices with an activation between them, optionally gated.

    ``act(x W1 + b1) W2 + b2`` (Vaswani et al. 2017, eq. 2), or with a gate
    ``(act(x W1) * x Wg) W2`` (Shazeer 2020).

    `activation` is a name in `ACTIVATIONS`. `dropout` is that of the hidden layer, after the
    activation.

    Example:
        >>> ff = FeedForward(16, 64, activation="silu", gated=True, bias=False)
        >>> sum(weight.numel() for weight in ff.parameters()) == 3 * 16 * 64
        True
    """

    edits: Edits | None = None

    def __init__(
        self,
        d_model: int,
        d_ff: int,
        *,
        activation: str = "relu",
        gated: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.d_ff = d_ff
        self.up = Linear(d_model, d_ff, bias=bias)
        self.gate = Linear(d_model, d_ff, bias=bias) if gated else None
        self.dropout = Dropout(dropout)
        self.down = Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, T, D) to (B, T, D), each position separately."""
        # For an input with three dimensions, torch.compile saves the sign of a ReLU as bool. On a
        # CPU, this makes the layer 1.7 times as slow.
        tokens = cast_once(x.flatten(0, -2) if torch.compiler.is_compiling() else x)
        y = self.activation(self.up(tokens))
        if self.gate is not None:
            y = y * self.gate(tokens)
        y = self.dropout(y)
        if self.edits is not None:
            y = self.edits.apply("neuron", y)
        return self.down(y).view(x.shape)
