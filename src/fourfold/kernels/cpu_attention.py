"""Attention on a CPU by matrix products, where faster than torch (bf16, dropout, decoding).

On a CPU, torch's fused kernel is slow in the backward pass and in the forward pass of one query for
many sequences. A slice of queries under a causal mask needs only the keys before the end of the
slice, which halves the work. Memory is proportional to the number of queries, not to its square.

Shapes: B batch, H heads, G = B H, Tq queries, Tk keys, n queries of a slice, e keys of a slice, Dh
head width, Dv value width.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fourfold.kernels.cpu_decoding import (
    consecutive_terms,
    supports_weighted_sums,
    weighted_sums,
)
from fourfold.kernels.dropout import keep_mask

CAUSAL_SLICE = 128  # queries; small enough to skip many hidden keys, large enough to be fast
MAX_SLICE_SCORES = 2**22  # attention scores of a slice without a causal mask
# Attention weights of one head that are saved. More weights are recomputed in the backward pass.
MAX_SAVED_WEIGHTS = 2**18


class QuerySlice(NamedTuple):
    """Range of queries (`rows`), and range of keys (`keys`) that these queries may attend to."""

    rows: slice
    keys: slice

    def select(self, x: Tensor) -> Tensor:
        """Select these queries and keys from a mask or bias x, broadcastable to (B, H, Tq, Tk)."""
        rows = self.rows if x.shape[2] > 1 else slice(None)
        keys = self.keys if x.shape[3] > 1 else slice(None)
        return x[:, :, rows, keys]


class Settings(NamedTuple):
    """Arguments of `attend_by_products` that are not tensors; `scale` is never None."""

    causal: bool
    scale: float
    dropout_p: float


def products_are_faster(q: Tensor, k_len: int, dropout_p: float) -> bool:
    """Return True where matrix products were measured to be faster than torch's fused kernel.

    These cases, on a CPU, are:

    - Training in bf16, and training with dropout: 5 times as fast at 16 tokens, 3 times at 128 and
      twice at 512 (forward and backward pass in bf16 on two cores).
    - Inference in bf16 with more than 8 queries and at least 2**15 attention scores: 1.1 to 2 times
      as fast.
    - Decoding one token of several sequences: 2 to 7 times as fast; in bf16 also up to 8 queries of
      several sequences (the beams of a source) with at most 32 keys.

    Args:
        q: Queries (B, H, Tq, Dh).
        k_len: Number of keys Tk.
        dropout_p: Dropout probability of the weights.
    """
    if q.device.type != "cpu":
        return False
    low = q.dtype == torch.bfloat16
    if torch.is_grad_enabled() and q.requires_grad:
        return low or dropout_p > 0.0
    if q.shape[2] > 8:
        return low and math.prod(q.shape[:3]) * k_len >= 2**15
    return q.shape[0] > 1 and q.shape[2] <= (8 if low and k_len <= 32 else 1)


def attend_by_products(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    scale: float | None,
    dropout_p: float,
) -> Tensor:
    """Compute attention (B, H, Tq, Dv) by matrix products over slices of the queries.

    The arguments are those of `attend`, but `mask` must not be a BlockMask, and `causal` must not
    be combined with a mask or a bias.
    """
    mask, bias = (None if x is None else x[(None,) * (4 - x.dim())] for x in (mask, bias))
    settings = Settings(causal, q.shape[-1] ** -0.5 if scale is None else scale, dropout_p)
    if not torch.is_grad_enabled():  # saves the overhead of autograd
        return _forward(_by_head(q, k, v, settings), mask, bias, settings, q.shape, None)
    return _Attention.apply(q, k, v, mask, bias, settings)


def _by_head(q: Tensor, k: Tensor, v: Tensor, settings: Settings) -> tuple[Tensor, Tensor, Tensor]:
    """Scale the queries, and merge the batch and head dimensions of queries, keys and values.

    Returns:
        Queries (G, Tq, Dh) times the scale, keys (G, Tk, Dh) and values (G, Tk, Dv).
    """
    return (q * settings.scale).flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)


def _forward(
    by_head: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    bias: Tensor | None,
    settings: Settings,
    shape: torch.Size,
    saved: list[tuple[Tensor | None, Tensor | None]] | None,
) -> Tensor:
    """Compute attention (B, H, Tq, Dv).

    Args:
        by_head: Queries, keys and values as returned by `_by_head`.
        mask: As for `attend_by_products`, with four dimensions.
        bias: As for `attend_by_products`, with four dimensions.
        settings: The other arguments of attention.
        shape: Shape (B, H, Tq, Dh) of the queries.
        saved: List to which a pair is appended for each slice of queries: the attention weights
            (None if they are too many to be saved) and the dropout factors (None without dropout).
            None if no backward pass follows.
    """
    q, k, v = by_head
    y = q.new_empty(*shape[:3], v.shape[2])
    saves_weights = shape[2] * k.shape[1] <= MAX_SAVED_WEIGHTS
    with torch.autocast(q.device.type, enabled=False):
        for part in _query_slices(shape, k.shape[1], settings.causal):
            weights = _weights(q, k, mask, bias, settings.causal, part, shape)
            drop = None
            if settings.dropout_p:
                kept, factor = keep_mask(weights, settings.dropout_p)
                drop = kept.to(weights.dtype).mul_(factor)
            if saved is not None:
                saved.append((weights if saves_weights else None, drop))
            mixed = _mix(weights if drop is None else weights * drop, v[:, part.keys])
            y[:, :, part.rows] = mixed.unflatten(0, shape[:2])
    return y


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        bias: Tensor | None,
        settings: Settings,
    ) -> Tensor:
        saved: list[tuple[Tensor | None, Tensor | None]] = []
        by_head = _by_head(q, k, v, settings)
        y = _forward(by_head, mask, bias, settings, q.shape, saved)
        saved_weights, drops = zip(*saved, strict=True)
        ctx.save_for_backward(*by_head, mask, bias, *saved_weights, *drops)
        ctx.slices = _query_slices(q.shape, k.shape[2], settings.causal)
        ctx.settings = settings
        ctx.shape = q.shape
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, bias, *more = ctx.saved_tensors
        settings = ctx.settings
        shape = ctx.shape
        saved_weights = more[: len(ctx.slices)]
        drops = more[len(ctx.slices) :]
        grad = grad.flatten(0, 1)
        dq = torch.empty_like(q)
        dk = _GradientSum(k, ctx.slices)
        dv = _GradientSum(v, ctx.slices)
        dbias = None
        if bias is not None and ctx.needs_input_grad[4]:
            dbias = torch.zeros_like(bias, dtype=torch.promote_types(bias.dtype, torch.float32))
        with torch.autocast(q.device.type, enabled=False):
            for part, weights, drop in zip(ctx.slices, saved_weights, drops, strict=True):
                rows, keys = part
                if weights is None:
                    weights = _weights(q, k, mask, bias, settings.causal, part, shape)
                dy = grad[:, rows]
                dweights = torch.bmm(dy, v[:, keys].mT)
                dropped = weights
                if drop is not None:
                    dweights = dweights * drop
                    dropped = weights * drop
                dv.add(keys, torch.bmm(dropped.mT, dy))
                dscores = torch.ops.aten._softmax_backward_data(
                    dweights, weights, -1, weights.dtype
                )
                if dbias is not None:
                    dbias_part = part.select(dbias)
                    by_head = dscores.unflatten(0, shape[:2]).to(dbias.dtype)
                    dbias_part += by_head.sum_to_size(dbias_part.shape)
                dk.add(keys, torch.bmm(dscores.mT, q[:, rows]))
                dq[:, rows] = torch.bmm(dscores, k[:, keys])
        dq *= settings.scale
        heads = shape[:2]
        dbias = None if dbias is None else dbias.to(bias.dtype)
        return dq.unflatten(0, heads), dk.total(heads), dv.total(heads), None, dbias, None


def _mix(weights: Tensor, values: Tensor) -> Tensor:
    """Multiply weights (G, n, e) with values (G, e, Dv); returns (G, n, Dv)."""
    heads, n, e = weights.shape
    width = values.shape[2]
    strides = values.stride()
    step, remainder = divmod(strides[0], width)  # in rows, from one head to the next
    is_table = not remainder and strides[1:] == (width, 1)
    one_query = n == 1 and not torch.compiler.is_compiling()
    if not (one_query and is_table and supports_weighted_sums(values)):
        return torch.bmm(weights, values)
    table = values.as_strided(((heads - 1) * step + e, width), (width, 1))
    return weighted_sums(table, consecutive_terms(heads, e, step), weights.flatten()).unsqueeze(1)


class _GradientSum:
    """Gradient of the keys or of the values, accumulated in fp32 over several slices of queries."""

    def __init__(self, x: Tensor, slices: list[QuerySlice]) -> None:
        self._dtype = x.dtype
        dtype = torch.promote_types(x.dtype, torch.float32)
        self._sum = torch.zeros_like(x, dtype=dtype) if len(slices) > 1 else None

    def add(self, keys: slice, part: Tensor) -> None:
        if self._sum is None:
            self._sum = part
        else:
            self._sum[:, keys] += part

    def total(self, heads: torch.Size) -> Tensor:
        assert self._sum is not None
        return self._sum.to(self._dtype).unflatten(0, heads)


def _query_slices(shape: torch.Size, k_len: int, causal: bool) -> list[QuerySlice]:
    """Divide queries of a shape (B, H, Tq, Dh) into slices, each with the keys it may attend to."""
    batch, heads, q_len, _ = shape
    step = CAUSAL_SLICE
    if not causal:
        step = max(CAUSAL_SLICE, MAX_SLICE_SCORES // (batch * heads * k_len))
    ends = [min(start + step, q_len) for start in range(0, q_len, step)]
    starts = [0, *ends[:-1]]
    return [
        QuerySlice(slice(start, end), slice(0, end if causal else k_len))
        for start, end in zip(starts, ends, strict=True)
    ]


def _weights(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    part: QuerySlice,
    shape: torch.Size,
) -> Tensor:
    """Compute the attention weights (G, n, e) of a slice; 0 for a query without allowed keys.

    torch computes the softmax of bf16 in fp32 and rounds the result.

    Args:
        q: Scaled queries (G, Tq, Dh).
        k: Keys (G, Tk, Dh).
        mask: Bool, broadcastable to (B, H, Tq, Tk), or None.
        bias: Added to the scores, broadcastable to (B, H, Tq, Tk), or None.
        causal: Hide the keys after a query.
        part: The slice.
        shape: Shape (B, H, Tq, Dh) of all queries.
    """
    n = part.rows.stop - part.rows.start
    e = part.keys.stop
    rows = q[:, part.rows]
    keys = k[:, part.keys]
    # For one query, torch would copy keys that are part of a larger buffer in the other order.
    scores = torch.bmm(keys, rows.mT).mT if n == 1 else torch.bmm(rows, keys.mT)
    by_head = scores.view(*shape[:2], n, e)
    if bias is not None:
        by_head += part.select(bias)
    if causal:
        allowed = torch.ones(n, n, dtype=torch.bool, device=q.device).tril()
        scores[:, :, e - n :] += _additive_mask(allowed, scores.dtype)
    if mask is None:
        return scores.softmax(-1)
    allowed = part.select(mask)
    by_head += _additive_mask(allowed, scores.dtype)
    weights = scores.softmax(-1)
    empty = ~allowed.any(-1, keepdim=True)
    if torch.compiler.is_compiling() or bool(empty.any()):
        weights.view_as(by_head).masked_fill_(empty, 0.0)
    return weights


def _additive_mask(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert a bool mask, True = may attend, to a mask that is added to the scores.

    The addition is four times as fast as `masked_fill` on the scores. Hidden keys get half of the
    most negative number of the `dtype`. With -inf, the weights of a query without allowed keys
    would be NaN. With the most negative number, the sum with a negative score would overflow.
    """
    additive = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    return additive.masked_fill_(~allowed, torch.finfo(dtype).min / 2)
