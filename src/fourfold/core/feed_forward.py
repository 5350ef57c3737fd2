"""Feed-forward layer of a transformer block, optionally gated, and its activations.

Shapes: B batch, T tokens, D model width.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourfold.core.validation import check_choice
from fourfold.kernels.autocast import cast_once
from fourfold.kernels.cpu_decoding import Linear
from fourfold.kernels.dropout import Dropout


def quick_gelu(x: Tensor) -> Tensor:
    """Compute x * sigmoid(1.702 x), an approximation of GELU (Hendrycks and Gimpel 2016).

    The tensor x may have any shape, which is also the shape of the result.

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

    Args:
        d_model: Model width D.
        d_ff: Hidden width.
        activation: A name in `ACTIVATIONS`.
        gated: Multiply the hidden layer by the gate x Wg.
        bias: Learn a bias in each matrix.
        dropout: Dropout probability of the hidden layer, after the activation.

    Raises:
        InputError: `activation` is not a name in `ACTIVATIONS`.

    Example:
        >>> ff = FeedForward(16, 64, activation="silu", gated=True)
        >>> ff(torch.randn(2, 5, 16)).shape
        torch.Size([2, 5, 16])
    """

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
        check_choice("activation", activation, tuple(ACTIVATIONS))
        self.activation = ACTIVATIONS[activation]
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
        return self.down(self.dropout(y)).view(x.shape)
