"""Block, Stack, DropPath, norm_from_config: the transformer block (Vaswani et al. 2017, Fig. 1).

The four placements of the norm::

                 post-norm                       pre-norm
          x = norm(x + sublayer(x))       x = x + sublayer(norm(x))

                 inside                          sandwich
          x = x + norm(sublayer(x))       x = x + post_norm(sublayer(norm(x)))

A block consists of self-attention, optional cross-attention and a feed-forward layer, each with a
residual connection. A memory is the output of an encoder. Shapes: B batch, T tokens, S memory
tokens, H heads, Tk keys, D model width.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fourfold.core.attention import Attention, lower_mask
from fourfold.core.config import TransformerConfig
from fourfold.core.edits import Edits, begin
from fourfold.core.feed_forward import FeedForward
from fourfold.core.kv_cache import KVCache, LayerCache
from fourfold.core.masks import LoweredMask, Mask, count_positions
from fourfold.core.rotary import Rotation, rotation
from fourfold.kernels.dropout import Dropout


def norm_from_config(config: TransformerConfig, width: int | None = None) -> nn.Module:
    """Build the LayerNorm (Ba et al. 2016) or RMSNorm (Zhang and Sennrich 2019) of a config.

    `width` is that of the normalized vectors; None means `config.d_model`.

    Example:
        >>> norm_from_config(TransformerConfig(d_model=16, norm="rms"))
        RMSNorm((16,), eps=1e-06, elementwise_affine=True)
    """
    if config.norm == "rms":
        return nn.RMSNorm(width or config.d_model, eps=config.norm_eps)
    return nn.LayerNorm(width or config.d_model, eps=config.norm_eps, bias=config.bias)


def _attention_from_config(config: TransformerConfig) -> Attention:
    return Attention(
        config.d_model,
        config.n_heads,
        n_kv_heads=config.n_kv_heads,
        d_head=config.d_head,
        d_value=config.d_value,
        bias=config.bias,
        qkv_bias=config.qkv_bias,
        out_bias=config.out_bias,
        qk_norm=config.qk_norm,
        norm=partial(norm_from_config, config),
        scale=config.attn_scale,
        dropout=config.attn_dropout,
    )


class DropPath(nn.Module):
    """Stochastic depth: sets a sub-layer's output to 0 for random samples (Huang et al. 2016).

    In training, this happens with the probability `drop_prob`. The output for the other samples is
    divided by 1 - `drop_prob`.

    Example:
        >>> drop = DropPath(0.5)
        >>> sorted(set(drop(torch.ones(64, 1, 1)).flatten().tolist()))
        [0.0, 2.0]
        >>> drop.eval()(torch.ones(2, 1, 1)).flatten()
        tensor([1., 1.])
    """

    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        # A tensor, because torch.compile would compile a graph for each value of a float.
        self.keep_prob = torch.tensor(1.0 - drop_prob, dtype=torch.float64, device="cpu")

    def forward(self, x: Tensor) -> Tensor:
        """Zero samples of x (B, T, D) at random in training; return x in evaluation."""
        if not self.training:
            return x
        drawn = torch.rand(x.shape[0], 1, 1, dtype=torch.float32, device=x.device)
        return x * (drawn < self.keep_prob) / self.keep_prob


def _maybe_checkpointed(layer: nn.Module, recompute: bool) -> Callable[..., Tensor]:
    """Return the layer; with `recompute`, it runs again for the gradients, from its inputs."""
    if recompute and torch.is_grad_enabled():
        return partial(checkpoint, layer, use_reentrant=False)
    return layer


class Block(nn.Module):
    """Transformer block, with one of four placements of the norms.

    Source: Vaswani et al. 2017, section 3.1 and Figure 1 (post-norm); Radford et al. 2019,
    section 2.3 (pre-norm).

    With `cross_attention`, it also attends to a memory. `drop_path` is the probability that a
    sub-layer is skipped in training, drawn for each sample. The attribute `recompute` states what
    runs again in the backward pass instead of storing its activations: "none", "attention" or
    "block" (Chen et al. 2016).

    Example:
        >>> block = Block(TransformerConfig(d_model=16, n_heads=4, d_ff=64), cross_attention=True)
        >>> [name for name, _ in block.named_children()][:6]
        ['attn_norm', 'attn', 'cross_attn_norm', 'cross_attn', 'ff_norm', 'ff']
    """

    edits: Edits | None = None

    def __init__(
        self, config: TransformerConfig, *, cross_attention: bool = False, drop_path: float = 0.0
    ) -> None:
        super().__init__()
        self.recompute = "none"
        self.norm_placement = config.norm_placement
        self.parallel = config.parallel
        self.attn_norm = norm_from_config(config)
        self.attn = _attention_from_config(config)
        if cross_attention:
            self.cross_attn_norm = norm_from_config(config)
            self.cross_attn = _attention_from_config(config)
        self.ff_norm = norm_from_config(config)
        self.ff = FeedForward(
            config.d_model,
            config.d_ff,
            activation=config.activation,
            gated=config.feed_forward == "glu",
            bias=config.bias,
            dropout=config.ff_dropout,
        )
        for name in ("attn", "cross_attn", "ff") if cross_attention else ("attn", "ff"):
            if config.norm_placement == "sandwich":
                self.add_module(f"{name}_post_norm", norm_from_config(config))
            if config.layer_scale is not None:
                gamma = nn.Parameter(torch.full((config.d_model,), config.layer_scale))
                self.register_parameter(f"{name}_gamma", gamma)
        self.has_layer_scale = config.layer_scale is not None
        self.dropout = Dropout(config.dropout)
        self.drop_path = DropPath(drop_path) if drop_path > 0.0 else nn.Identity()

    def forward(
        self,
        x: Tensor,
        mask: LoweredMask,
        *,
        memory: Tensor | None = None,
        memory_mask: LoweredMask = LoweredMask(),
        bias: Tensor | None = None,
        cache: LayerCache | None = None,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """Transform x (B, T, D), which is only the new tokens if there is a cache.

        Both masks are results of `lower_mask`. `memory` (B, S, D) is for cross-attention, `bias`
        and `rotation` for self-attention (see `Attention.forward`).
        """
        if self.edits is not None:
            x = self.edits.apply("in", x)
        own = {"mask": mask, "bias": bias, "cache": cache, "rotation": rotation}
        y = self._residual(x, "attn", **own)
        if memory is not None:
            cross = {"mask": memory_mask, "cache": cache}
            y = self._residual(x if self.parallel else y, "cross_attn", memory, stream=y, **cross)
        y = self._residual(x if self.parallel else y, "ff", stream=y)
        return y if self.edits is None else self.edits.apply("out", y)

    def _residual(self, x: Tensor, name: str, *inputs: Tensor, **options: Any) -> Tensor:
        """Add the output of the sub-layer `name` for x to the option `stream`, by default x."""
        stream = options.pop("stream", x)
        if self.edits is not None:
            x = self.edits.apply(f"{name}.in", x)
        norm = getattr(self, f"{name}_norm")
        has_norm_first = self.norm_placement in ("pre", "sandwich")
        recompute = self.recompute == "attention" and name != "ff" and self.edits is None
        layer = _maybe_checkpointed(getattr(self, name), recompute)
        y = layer(norm(x) if has_norm_first else x, *inputs, **options)
        if self.norm_placement == "inside":
            y = norm(y)
        elif self.norm_placement == "sandwich":
            y = getattr(self, f"{name}_post_norm")(y)
        y = self.dropout(y)
        y = self.drop_path(y * getattr(self, f"{name}_gamma") if self.has_layer_scale else y)
        if self.edits is not None:
            y = self.edits.apply(f"{name}.out", y)
        y = stream + y
        return norm(y) if self.norm_placement == "post" else y


class Stack(nn.Module):
    """Stack of N blocks, followed by a norm unless the blocks are post-norm.

    Source: Vaswani et al. 2017, section 3.1.

    Example:
        >>> config = TransformerConfig(d_model=16, n_layers=2, n_heads=4, d_ff=64)
        >>> x = torch.randn(1, 5, 16)
        >>> causal = Stack(config).eval()
        >>> y, first = causal(x, Mask(causal=True)), causal(x[:, :1], Mask(causal=True))
        >>> torch.allclose(y[:, :1], first, atol=1e-6)  # the first token does not see the others
        True
    """

    edits: Edits | None = None

    def __init__(self, config: TransformerConfig, *, cross_attention: bool = False) -> None:
        super().__init__()
        depth = config.n_layers
        rates = [config.drop_path * i / max(depth - 1, 1) for i in range(depth)]
        self.blocks = nn.ModuleList(
            Block(config, cross_attention=cross_attention, drop_path=rate) for rate in rates
        )
        self.norm = nn.Identity() if config.norm_placement == "post" else norm_from_config(config)
        self.windows = config.windows()
        self.rotary_width = config.rotary_width
        # Base and scaling of rotary positions in layers with full attention, and with a window.
        self.rope = config.rope_theta, config.rope_scaling
        has_local = config.rope_local_theta is not None
        self.local_rope = (config.rope_local_theta, None) if has_local else self.rope
        self.attn_dropout = config.attn_dropout
        self.has_narrow_heads = min(config.head_width, config.value_width) < 16

    def forward(
        self,
        x: Tensor,
        mask: Mask = Mask(),
        *,
        memory: Tensor | None = None,
        memory_mask: Mask = Mask(),
        bias: Tensor | None = None,
        cache: KVCache | None = None,
        positions: Tensor | slice | None = None,
    ) -> Tensor:
        """Transform x (B, T, D) by all blocks.

        Args:
            x: Residual stream; with a cache, only the new tokens.
            mask: Self-attention mask.
            memory: Output (B, S, D) of an encoder; None means no cross-attention.
            memory_mask: Cross-attention mask.
            bias: Tensor added to the scores of self-attention, broadcastable to (B, H, T, Tk).
            cache: Keys and values of earlier tokens and of the memory, to which those of x are
                appended in place. `mask_and_positions` must already have counted the tokens x.
            positions: Rotary positions of the tokens x, a slice of length T or a tensor (B, T).
                None counts the real tokens of each document from 0.
        """
        q_len = x.shape[1]
        if self.edits is not None or (cache is not None and cache.edits):
            begin(self.edits, cache, q_len, mask.keys, memory_mask.keys)
        # FlexAttention supports neither a bias nor dropout, nor on CUDA heads narrower than 16.
        dropout = self.training and self.attn_dropout > 0.0
        dense = bias is not None or dropout or (self.has_narrow_heads and x.is_cuda)
        if positions is None and self.rope[0] is not None:
            length = q_len if cache is None else cache.length
            positions = count_positions(mask.keys, mask.documents, q_len, length)
        # Layers with a window, and layers with full attention: each kind has one mask and rotation.
        kinds = {}
        for window in dict.fromkeys(self.windows):
            k_len = q_len if cache is None else cache.n_keys(q_len, window)
            own = mask if window is None else replace(mask, window=window)
            lowered = lower_mask(own, q_len, k_len, x, dense=dense)
            kinds[window] = lowered, self._rotation(positions, x, window)
        cross = LoweredMask()
        if memory is not None:
            cross = lower_mask(memory_mask, q_len, memory.shape[1], x, dense=dense)
        options = {"memory": memory, "memory_mask": cross, "bias": bias}
        for i, block in enumerate(self.blocks):
            layer = cache.layer(i) if cache is not None else None
            lowered, turns = kinds[self.windows[i]]
            # The edits may have ended when a block runs again, so those activations are stored.
            run = _maybe_checkpointed(block, block.recompute == "block" and self.edits is None)
            x = run(x, lowered, cache=layer, rotation=turns, **options)
        return self.norm(x)

    def _rotation(
        self, positions: Tensor | slice | None, x: Tensor, window: int | None
    ) -> Rotation | None:
        theta, scaling = self.rope if window is None else self.local_rope
        if theta is None or positions is None:
            return None
        return rotation(positions, x, width=self.rotary_width, theta=theta, scaling=scaling)
