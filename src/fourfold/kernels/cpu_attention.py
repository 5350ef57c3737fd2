"""Attention as matrix products, for a CPU in low precision.

There the fused kernel's backward pass is slow, and so is its step of one query for many rows. Here
queries are taken some rows at a time: under the causal triangle these see only the keys before
them, which halves the work, and what is held at once grows with the length and not with its square.

Shapes: B batch, H heads, G = B H, Tq queries, Tk keys, n of the rows at hand, e of the keys they
see, Dh head width, Dv value width.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fourfold.kernels.dropout import keep
from fourfold.kernels.rows import runs, sums_fast, weighted_sums

CAUSAL_ROWS = 128  # few enough to skip much of the square, enough for a fast product
HELD = 2**22  # scores at once, where the triangle gives no reason to cut
KEPT = 2**18  # weights of one head that are kept for the backward pass rather than made again


class Cut(NamedTuple):
    """What one part of the queries sees."""

    rows: slice
    keys: slice

    def of(self, x: Tensor) -> Tensor:
        """The part of x, broadcastable to (B, H, Tq, Tk), that belongs to these rows and keys."""
        rows = self.rows if x.shape[2] > 1 else slice(None)
        keys = self.keys if x.shape[3] > 1 else slice(None)
        return x[:, :, rows, keys]


class Settings(NamedTuple):
    """What is no tensor."""

    causal: bool
    scale: float
    dropout_p: float


def products_are_faster(q: Tensor, k_len: int, dropout_p: float) -> bool:
    """Whether they beat the fused kernel for queries (B, H, Tq, Dh) and as many keys.

    In training in bf16, for which its backward is slow, and with dropout, for which there is none:
    measured forward and backward on two cores in bf16, 5 times as fast at 16 tokens, 3 at 128, 2
    at 512. Without a gradient in bf16, too, but for a few tokens, 1.1 to 2 times as fast. And where
    several rows are continued by a token, 2 to 7 times; in bf16 also by the beams of several
    sources, while there are few keys.
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
    """Attention with the arguments of `attend`; `causal` goes with neither mask nor bias."""
    mask, bias = (None if x is None else x[(None,) * (4 - x.dim())] for x in (mask, bias))
    settings = Settings(causal, q.shape[-1] ** -0.5 if scale is None else scale, dropout_p)
    if not torch.is_grad_enabled():  # without what autograd takes time for
        return _forward(_by_head(q, k, v, settings), mask, bias, settings, q.shape, None)
    return _Attention.apply(q, k, v, mask, bias, settings)


class ByHead(NamedTuple):
    """Scaled queries (G, Tq, Dh), keys and values (G, Tk, Dh), G = B H."""

    q: Tensor
    k: Tensor
    v: Tensor


def _by_head(q: Tensor, k: Tensor, v: Tensor, settings: Settings) -> ByHead:
    return ByHead((q * settings.scale).flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1))


def _forward(
    by_head: ByHead,
    mask: Tensor | None,
    bias: Tensor | None,
    settings: Settings,
    shape: torch.Size,
    made: list[tuple[Tensor | None, Tensor | None]] | None,
) -> Tensor:
    """The result (B, H, Tq, Dv) for queries of a `shape`.

    A list for what is `made` gets of each cut the weights, where they are few enough to keep, and
    what dropout multiplied them by.
    """
    q, k, v = by_head
    y = q.new_empty(*shape[:3], v.shape[2])
    short = shape[2] * k.shape[1] <= KEPT
    with torch.autocast(q.device.type, enabled=False):
        for cut in _cuts(shape, k.shape[1], settings.causal):
            weights, drop = _weights(q, k, mask, bias, settings.causal, cut, shape), None
            if settings.dropout_p:
                stays, factor = keep(weights, settings.dropout_p)
                drop = stays.to(weights.dtype).mul_(factor)
            if made is not None:
                made.append((weights if short else None, drop))
            part = _mix(weights if drop is None else weights * drop, v[:, cut.keys])
            y[:, :, cut.rows] = part.unflatten(0, shape[:2])
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
        made: list[tuple[Tensor | None, Tensor | None]] = []
        by_head = _by_head(q, k, v, settings)
        y = _forward(by_head, mask, bias, settings, q.shape, made)
        kept, drops = zip(*made, strict=True)
        ctx.save_for_backward(*by_head, mask, bias, *kept, *drops)
        ctx.cuts, ctx.settings, ctx.shape = (
            _cuts(q.shape, k.shape[2], settings.causal), settings, q.shape
        )  # fmt: skip
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, bias, *more = ctx.saved_tensors
        settings, shape = ctx.settings, ctx.shape
        kept, drops = more[: len(ctx.cuts)], more[len(ctx.cuts) :]
        grad = grad.flatten(0, 1)
        dq, dk, dv = torch.empty_like(q), _Sum(k, ctx.cuts), _Sum(v, ctx.cuts)
        dbias = None
        if bias is not None and ctx.needs_input_grad[4]:
            dbias = torch.zeros_like(bias, dtype=torch.promote_types(bias.dtype, torch.float32))
        with torch.autocast(q.device.type, enabled=False):
            for cut, weights, drop in zip(ctx.cuts, kept, drops, strict=True):
                rows, keys = cut
                if weights is None:
                    weights = _weights(q, k, mask, bias, settings.causal, cut, shape)
                dy = grad[:, rows]
                dweights, dropped = torch.bmm(dy, v[:, keys].mT), weights
                if drop is not None:
                    dweights, dropped = dweights * drop, weights * drop
                dv.add(keys, torch.bmm(dropped.mT, dy))
                dscores = torch.ops.aten._softmax_backward_data(
                    dweights, weights, -1, weights.dtype
                )
                if dbias is not None:
                    part = cut.of(dbias)
                    by_head = dscores.unflatten(0, shape[:2]).to(dbias.dtype)
                    part += by_head.sum_to_size(part.shape)
                dk.add(keys, torch.bmm(dscores.mT, q[:, rows]))
                dq[:, rows] = torch.bmm(dscores, k[:, keys])
        dq *= settings.scale
        heads = shape[:2]
        dbias = None if dbias is None else dbias.to(bias.dtype)
        return dq.unflatten(0, heads), dk.total(heads), dv.total(heads), None, dbias, None


def _mix(weights: Tensor, values: Tensor) -> Tensor:
    """weights (G, n, e) times values (G, e, Dv)."""
    (heads, n, e), width = weights.shape, values.shape[2]
    strides = values.stride()
    apart, rest = divmod(strides[0], width)  # rows from one head to the next
    several = n > 1 or torch.compiler.is_compiling()
    if several or rest or strides[1:] != (width, 1) or not sums_fast(values):
        return torch.bmm(weights, values)
    table = values.as_strided(((heads - 1) * apart + e, width), (width, 1))
    return weighted_sums(table, runs(heads, e, apart), weights.flatten()).unsqueeze(1)


class _Sum:
    """A gradient by keys or values, added up over the cuts in fp32, where there are several."""

    def __init__(self, x: Tensor, cuts: list[Cut]) -> None:
        self._dtype = x.dtype
        exact = torch.promote_types(x.dtype, torch.float32)
        self._sum = torch.zeros_like(x, dtype=exact) if len(cuts) > 1 else None

    def add(self, keys: slice, part: Tensor) -> None:
        if self._sum is None:
            self._sum = part
        else:
            self._sum[:, keys] += part

    def total(self, heads: torch.Size) -> Tensor:
        assert self._sum is not None
        return self._sum.to(self._dtype).unflatten(0, heads)


def _cuts(shape: torch.Size, k_len: int, causal: bool) -> list[Cut]:
    """The queries (B, H, Tq, Dh) in parts, and the keys that each part sees."""
    batch, heads, q_len, _ = shape
    step = CAUSAL_ROWS if causal else max(CAUSAL_ROWS, HELD // (batch * heads * k_len))
    ends = [min(start + step, q_len) for start in range(0, q_len, step)]
    starts = [0, *ends[:-1]]
    return [
        Cut(slice(start, end), slice(0, end if causal else k_len))
        for start, end in zip(starts, ends, strict=True)
    ]


def _weights(
    q: Tensor,
    k: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    cut: Cut,
    shape: torch.Size,
) -> Tensor:
    """Softmax of the scores of a cut, (G, n, e); a row without any key is 0.

    torch's softmax of bf16 computes in fp32 and rounds what it gives.
    """
    n, e = cut.rows.stop - cut.rows.start, cut.keys.stop
    rows, keys = q[:, cut.rows], k[:, cut.keys]
    # Of one query the other way about: this way torch copies keys that stand in a larger buffer.
    scores = torch.bmm(keys, rows.mT).mT if n == 1 else torch.bmm(rows, keys.mT)
    by_head = scores.view(*shape[:2], n, e)
    if bias is not None:
        by_head += cut.of(bias)
    if causal:
        past = torch.ones(n, n, dtype=torch.bool, device=q.device).tril()
        scores[:, :, e - n :] += _hidden(past, scores.dtype)
    if mask is None:
        return scores.softmax(-1)
    seen = cut.of(mask)
    by_head += _hidden(seen, scores.dtype)
    weights = scores.softmax(-1)
    empty = ~seen.any(-1, keepdim=True)
    if torch.compiler.is_compiling() or bool(empty.any()):
        weights.view_as(by_head).masked_fill_(empty, 0.0)
    return weights


def _hidden(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """What hides the other keys when added to scores: four times as fast as to fill them in.

    Not -inf, of which an empty row would make NaN, and with room for the score below it.
    """
    hidden = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return hidden.masked_fill_(~seen, torch.finfo(dtype).min / 2)
