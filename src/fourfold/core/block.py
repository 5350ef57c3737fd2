"""The block that all four families share, and a stack of it (Vaswani et al. 2017, Figure 1).

                 post-norm                       pre-norm
          x = norm(x + sublayer(x))       x = x + sublayer(norm(x))

A block is self-attention, optional cross-attention and a feed-forward layer, each inside the
same residual. Shapes: B batch, T tokens, S memory tokens, D model width.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourfold.core.attention import Attention, lower
from fourfold.core.cache import KVCache, LayerCache
from fourfold.core.config import TransformerConfig
from fourfold.core.masks import Lowered, Mask
from fourfold.kernels.dropout import Dropout
from fourfold.kernels.linear import Linear


def quick_gelu(x: Tensor) -> Tensor:
    """x sigmoid(1.702 x) (Hendrycks and Gimpel 2016, section 2)."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,  # Vaswani et al. 2017, eq. 2
    "gelu": F.gelu,  # Hendrycks and Gimpel 2016, exact
    "gelu_tanh": partial(F.gelu, approximate="tanh"),  # its approximation: GPT-2, original BERT
    "quick_gelu": quick_gelu,  # the cruder approximation of the same paper: CLIP
    "silu": F.silu,  # Elfwing et al. 2017; with glu: SwiGLU, Shazeer 2020
}


def make_norm(config: TransformerConfig) -> nn.Module:
    """LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019) over D."""
    if config.norm == "rms":
        return nn.RMSNorm(config.d_model, eps=config.norm_eps)
    return nn.LayerNorm(config.d_model, eps=config.norm_eps, bias=config.bias)


class FeedForward(nn.Module):
    """act(x W1 + b1) W2 + b2 (Vaswani eq. 2), or gated: (act(x W1) * x Wg) W2."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        self.up = Linear(config.d_model, config.d_ff, bias=config.bias)
        gated = config.feed_forward == "glu"
        self.gate = Linear(config.d_model, config.d_ff, bias=config.bias) if gated else None
        self.dropout = Dropout(config.ff_dropout)
        self.down = Linear(config.d_ff, config.d_model, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        y = self.activation(self.up(x))
        if self.gate is not None:
            y = y * self.gate(x)
        return self.down(self.dropout(y))


class Block(nn.Module):
    """One layer of any of the four families.

    Args:
        config: The stack's description.
        cross_attention: Whether it also attends to a memory (decoder of an encoder-decoder).
        drop_path: Probability that a sub-layer is skipped for a whole row of the batch.
    """

    def __init__(
        self, config: TransformerConfig, *, cross_attention: bool = False, drop_path: float = 0.0
    ) -> None:
        super().__init__()
        self.pre_norm = config.norm_placement == "pre"
        self.attn_norm, self.attn = make_norm(config), Attention(config)
        if cross_attention:
            self.cross_attn_norm, self.cross_attn = make_norm(config), Attention(config)
        self.ff_norm, self.ff = make_norm(config), FeedForward(config)
        self.dropout = Dropout(config.dropout)
        self.drops = drop_path > 0.0
        # No float, of which each would compile a graph of its own.
        self.kept = torch.tensor(1.0 - drop_path, dtype=torch.float64, device="cpu")

    def forward(
        self,
        x: Tensor,
        mask: Lowered,
        *,
        memory: Tensor | None = None,
        memory_mask: Lowered = Lowered(),
        bias: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """x (B, T, D), memory (B, S, D) or None; returns (B, T, D)."""

        def attn(y: Tensor) -> Tensor:
            return self.attn(y, mask=mask, bias=bias, cache=cache)

        def cross_attn(y: Tensor) -> Tensor:
            return self.cross_attn(y, memory, mask=memory_mask, cache=cache)

        x = self._residual(x, self.attn_norm, attn)
        if memory is not None:
            x = self._residual(x, self.cross_attn_norm, cross_attn)
        return self._residual(x, self.ff_norm, self.ff)

    def _residual(self, x: Tensor, norm: nn.Module, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.pre_norm:
            return x + self._drop(sublayer(norm(x)))
        return norm(x + self._drop(sublayer(x)))

    def _drop(self, y: Tensor) -> Tensor:
        y = self.dropout(y)
        if self.drops and self.training:
            drawn = torch.rand(y.shape[0], 1, 1, dtype=torch.float32, device=y.device)
            y = y * (drawn < self.kept) / self.kept
        return y


class Stack(nn.Module):
    """N blocks, and after pre-norm blocks one last norm.

    Args:
        config: Its description.
        cross_attention: Whether blocks attend to a memory.
        n_layers: Depth, when it is not the config's (a decoder of another depth).
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        cross_attention: bool = False,
        n_layers: int | None = None,
    ) -> None:
        super().__init__()
        depth = n_layers or config.n_layers
        rates = [config.drop_path * i / max(depth - 1, 1) for i in range(depth)]
        self.blocks = nn.ModuleList(
            Block(config, cross_attention=cross_attention, drop_path=rate) for rate in rates
        )
        self.norm = make_norm(config) if config.norm_placement == "pre" else nn.Identity()
        self.attn_dropout = config.attn_dropout
        self.narrow = min(config.head_width, config.value_width) < 16

    def forward(
        self,
        x: Tensor,
        mask: Mask = Mask(),
        *,
        memory: Tensor | None = None,
        memory_mask: Mask = Mask(),
        bias: Tensor | None = None,
        cache: KVCache | None = None,
    ) -> Tensor:
        """x (B, T, D), memory (B, S, D) or None, bias over (B, H, T, Tk); returns (B, T, D).

        The masks are lowered here, once for all blocks.
        """
        q_len = x.shape[1]
        k_len = cache.length if cache is not None else q_len
        # What FlexAttention cannot do: a bias, dropout, and on CUDA heads narrower than 16.
        dropout = self.training and self.attn_dropout > 0.0
        dense = bias is not None or dropout or (self.narrow and x.is_cuda)
        own = lower(mask, q_len, k_len, x, dense)
        cross = Lowered()
        if memory is not None:
            cross = lower(memory_mask, q_len, memory.shape[1], x, dense)
        for i, block in enumerate(self.blocks):
            layer = cache.layer(i) if cache is not None else None
            x = block(x, own, memory=memory, memory_mask=cross, bias=bias, cache=layer)
        return self.norm(x)
