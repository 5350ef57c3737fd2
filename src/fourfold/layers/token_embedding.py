"""Token embedding with positions and segments.

Shapes: B batch, T tokens, D model width.
"""

import math

import torch
from torch import Tensor, nn

from fourfold.kernels.dropout import Dropout
from fourfold.layers.positions import make_positions


class TokenEmbedding(nn.Module):
    """Token embedding: sum of token, position and segment vectors, optional norm, and dropout.

    Args:
        vocab_size: Number of tokens of the vocabulary, which must not be None.
        max_len: Number of positions in the table; ignored if `positions` is "none".
        positions: A name in `fourfold.layers.positions.POSITIONS`.
        n_segments: Number of segment vectors (BERT's sentences A and B); 0 for none.
        scale: Factor on token vectors. True means sqrt(D) (Vaswani et al. 2017, section 3.4), and
            False or None means 1. A number is rounded to the data type of the vectors, as in the
            Gemma of transformers (33.94 becomes 34 in bf16).
        norm: Module applied to the sum (BERT), or None.
        dropout: Dropout probability of the result.
    """

    def __init__(
        self,
        vocab_size: int | None,
        d_model: int,
        *,
        max_len: int = 0,
        positions: str = "none",
        n_segments: int = 0,
        scale: bool | float | None = False,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        assert vocab_size is not None, "vocab_size must be known when a model is built"
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.positions = make_positions(positions, max_len, d_model)
        self.segments = nn.Embedding(n_segments, d_model) if n_segments else None
        self.scale = d_model**0.5 if scale is True else float(scale or 1.0)
        self.rounds_scale = scale is not True
        self.norm = norm or nn.Identity()
        self.dropout = Dropout(dropout)

    def forward(
        self, ids: Tensor, positions: Tensor | slice, segments: Tensor | None = None
    ) -> Tensor:
        """Embed tokens (B, T) at positions, a slice or a tensor (B, T), as vectors (B, T, D)."""
        x = self.tokens(ids)  # (B, T, D)
        if self.scale != 1.0:
            x = x * (round_to(self.scale, x.dtype) if self.rounds_scale else self.scale)
        if self.positions is not None:
            x = x + self.positions(positions)
        if self.segments is not None:
            x = x + self.segments(torch.zeros_like(ids) if segments is None else segments)
        return self.dropout(self.norm(x))

    def share_tokens(self, owner: "TokenEmbedding") -> None:
        """Use the token vectors of the embedding `owner`, whose state dict alone contains them."""
        del self.tokens
        # Assigning an nn.Module the usual way would register it here, too.
        object.__setattr__(self, "tokens", owner.tokens)


def round_to(value: float, dtype: torch.dtype) -> float:
    """Round a positive number to the nearest number of a floating-point data type."""
    unit = torch.finfo(dtype).eps * 2.0 ** (math.frexp(value)[1] - 1)
    return round(value / unit) * unit
