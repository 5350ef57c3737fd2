"""Scaled dot-product attention (Vaswani et al. 2017, eq. 1) and multi-head attention (3.2.2).

Shapes: B batch, S sources, H heads, Tq queries, Tk keys, D model width, Dh head width, Dv value
width.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache as once

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_mask, flex_attention

from fourfold.core.cache import LayerCache
from fourfold.core.config import TransformerConfig, check_word
from fourfold.core.masks import Lowered, Mask, triangle
from fourfold.kernels.linear import Linear
from fourfold.kernels.products import attend_by_products, products_are_faster

BACKENDS = ("auto", "naive", "sdpa", "flex")
_backend: ContextVar[str] = ContextVar("attention_backend", default="auto")


@contextmanager
def attention_backend(name: str) -> Iterator[None]:
    """Within it every attention runs on one backend: auto, naive, sdpa or flex."""
    check_word("attention backend", name, BACKENDS)
    token = _backend.set(name)
    try:
        yield
    finally:
        _backend.reset(token)


def lower(mask: Mask, q_len: int, k_len: int, like: Tensor, dense: bool = False) -> Lowered:
    """Lower a mask for the backend that serves it best where `like` lives.

    FlexAttention skips whole blocks that documents or a window mask away, and is used for these
    on CUDA, unless `dense` says that there is something it cannot do.
    """
    sparse = mask.documents is not None or mask.window is not None
    backend = _backend.get()
    flex = backend == "flex" or (backend == "auto" and like.is_cuda and sparse)
    return mask.lower(q_len, k_len, like.device, flex=flex and not dense)


def attention_weights(
    q: Tensor, k: Tensor, mask: Tensor | None, bias: Tensor | None, scale: float | None
) -> Tensor:
    """softmax(q k^T scale + bias) over allowed keys, (B, H, Tq, Tk); a row without any is 0."""
    exact = torch.promote_types(q.dtype, torch.float32)
    scores = q.to(exact) @ k.to(exact).mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + bias
    if mask is None:
        return scores.softmax(-1)
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    return weights.masked_fill(~mask, 0.0)  # also turns the NaN of an empty row into 0


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | BlockMask | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    """Attention on the fastest kernel that serves the arguments; the only caller of kernels.

    Args:
        q: (B, H, Tq, Dh).
        k: (B, H, Tk, Dh).
        v: (B, H, Tk, Dv).
        mask: Bool, True = may attend, broadcastable to (B, H, Tq, Tk); or a BlockMask, which
            has causality in it and goes with neither bias nor dropout.
        bias: Added to the scores, broadcastable to (B, H, Tq, Tk).
        causal: Apply the causal triangle, bottom-right aligned.
        scale: Factor on the scores; None means 1 / sqrt(Dh).
        dropout_p: Dropout on the weights.

    Returns:
        (B, H, Tq, Dv); 0 where a query may see no key.
    """
    if isinstance(mask, BlockMask):
        assert bias is None, "lower the mask with dense=True"
        assert dropout_p == 0.0, "lower the mask with dense=True"
        assert not causal, "causality is in the BlockMask"
        return _flex(q.is_cuda)(q, k, v, block_mask=mask, scale=scale)
    q_len, k_len = q.shape[2], k.shape[2]
    naive = _backend.get() == "naive"
    if causal and (mask is not None or bias is not None or q_len != k_len or naive):
        past = triangle(q_len, k_len, q.device)
        mask, causal = past if mask is None else mask & past, False
    if naive:
        weights = attention_weights(q, k, mask, bias, scale).to(v.dtype)
        return F.dropout(weights, dropout_p) @ v
    if _backend.get() == "auto" and products_are_faster(q, k_len, dropout_p):
        return attend_by_products(q, k, v, mask, bias, causal, scale, dropout_p)
    if bias is not None:
        bias = bias.to(q.dtype)
        mask = bias if mask is None else bias.masked_fill(~mask, float("-inf"))
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout_p, is_causal=causal, scale=scale
    )


@once
def _flex(compiled: bool):  # type: ignore[no-untyped-def]
    """FlexAttention is only fast compiled; eager it serves the tests on a CPU."""
    return torch.compile(flex_attention, dynamic=True) if compiled else flex_attention


class Attention(nn.Module):
    """Multi-head attention over the tokens themselves, or over a `memory` (cross-attention).

    Args:
        config: The stack's description.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        width, heads, bias = config.d_model, config.n_heads, config.bias
        self.n_heads = heads
        self.scale = config.attn_scale
        self.dropout = config.attn_dropout
        self.q = Linear(width, heads * config.head_width, bias=bias)
        self.k = Linear(width, heads * config.head_width, bias=bias)
        self.v = Linear(width, heads * config.value_width, bias=bias)
        self.out = Linear(heads * config.value_width, width, bias=bias)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Lowered = Lowered(),
        bias: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """Attend from x (B, Tq, D) to itself or to `memory` (B, Tk, D); returns (B, Tq, D).

        A memory or cache of fewer rows, (S, Tk, D), serves B / S rows of x each, one after the
        other; a mask may be by row of either.
        """
        q = self._split(self.q(x))  # (B, H, Tq, Dh)
        k, v = self._keys_values(x, memory, cache)
        allowed, shared = mask.mask, len(k) < len(q)
        if shared:  # beams of one source share what it holds: they are as many queries more
            if allowed is not None and len(allowed) == len(q):
                allowed = as_queries(allowed, len(k))  # (S, 1, B/S Tq, Tk)
            q = as_queries(q, len(k))  # (S, H, B/S Tq, Dh)
        dropout_p = self.dropout if self.training else 0.0
        y = attend(
            q, k, v,
            mask=allowed, causal=mask.causal, bias=bias, scale=self.scale, dropout_p=dropout_p,
        )  # (B, H, Tq, Dv)  # fmt: skip
        if shared:
            y = y.unflatten(2, (-1, x.shape[1])).transpose(1, 2).flatten(0, 1)  # (B, H, Tq, Dv)
        return self.out(y.transpose(1, 2).flatten(2))  # (B, Tq, D)

    def weights(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Lowered = Lowered(),
        bias: Tensor | None = None,
    ) -> Tensor:
        """The attention weights (B, H, Tq, Tk) that `forward` of the same inputs applies."""
        dense = mask.mask
        if isinstance(dense, BlockMask):
            rows, heads, q_len, k_len = dense.shape
            dense = create_mask(dense.mask_mod, rows, heads, q_len, k_len, str(x.device))
        if mask.causal:
            dense = triangle(x.shape[1], x.shape[1], x.device)
        k, _ = self._keys_values(x, memory, None)
        return attention_weights(self._split(self.q(x)), k, dense, bias, self.scale)

    def _keys_values(
        self, x: Tensor, memory: Tensor | None, cache: LayerCache | None
    ) -> tuple[Tensor, Tensor]:
        def project() -> tuple[Tensor, Tensor]:
            source = x if memory is None else memory
            return self._split(self.k(source)), self._split(self.v(source))

        if cache is None:
            return project()
        if memory is not None:
            return cache.project_once(project)
        return cache.extend(*project())

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)  # (B, H, T, Dh)


def as_queries(x: Tensor, sources: int) -> Tensor:
    """Rows of one of S sources as queries more: (B, H, Tq, Dh) to (S, H, B/S Tq, Dh)."""
    return x.unflatten(0, (sources, -1)).transpose(1, 2).flatten(2, 3)
