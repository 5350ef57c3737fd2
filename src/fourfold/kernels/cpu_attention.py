"""Attention on a CPU by matrix products, used where it is faster than torch's fused kernel.

On a CPU, torch's fused kernel is slow in the backward pass, with dropout, and in decoding, in which
each sequence of a batch has one query. This kernel processes the queries in slices. Under a causal
mask, a slice of queries needs only the keys before the end of the slice, which halves the work.
With a window, a slice needs only the keys near the slice, so the work is proportional to the number
of queries. The memory grows linearly with the number of queries.

Shapes: B batch, H heads, G = B H, Tq queries, Tk keys, n queries of a slice, e keys of a slice, Dh
head width, Dv value width.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fourfold.errors import InputError
from fourfold.kernels.cpu_decoding import consecutive_terms, supports_weighted_sums, weighted_sums
from fourfold.kernels.dropout import keep_mask

CAUSAL_SLICE = 128  # queries; small enough to skip many hidden keys, large enough to be fast
WINDOW_SLICE = 32  # queries; few keys outside the windows of these queries are read
MAX_SLICE_SCORES = 2**22  # attention scores of a slice without a causal mask
# Least number of keys, and least ratio of keys to window, for which this kernel applies a window.
MIN_SLICED_KEYS = 256
MIN_KEYS_PER_WINDOW = 4
# Attention weights of one head that are saved. More weights are recomputed in the backward pass.
MAX_SAVED_WEIGHTS = 2**18


class Inputs(NamedTuple):
    """Arguments of attention, with batch and heads merged to G = B H, and what follows from them.

    Attributes:
        q: Queries (G, Tq, Dh), multiplied by the scale.
        k: Keys (G, Tk, Dh).
        v: Values (G, Tk, Dv).
        mask: Bool with four dimensions, broadcastable to (B, H, Tq, Tk), or None.
        bias: Terms added to the scores, in such a shape, or None.
        causal: Hide the keys after a query. Without a window, Tq must equal Tk.
        dropout_p: Dropout probability of the weights.
        n_heads: Number of heads H.
        window: Hide keys whose distance to the query is at least this number of columns, or None.
            The last query has the column of the last key.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    bias: Tensor | None
    causal: bool
    dropout_p: float
    n_heads: int
    window: int | None = None

    def slices(self) -> list[tuple[slice, slice]]:
        """Divide the queries into slices, each with the range of keys that they may attend to."""
        q_len, k_len = self.q.shape[1], self.k.shape[1]
        offset = k_len - q_len
        step, before = CAUSAL_SLICE, k_len
        if self.window is not None:
            step, before = WINDOW_SLICE, self.window - 1
        elif not self.causal:
            step = max(CAUSAL_SLICE, MAX_SLICE_SCORES // max(1, len(self.q) * k_len))
        after = 0 if self.causal else before
        slices = []
        for start in range(0, q_len, step):
            end = min(start + step, q_len)
            stop = max(0, min(k_len, end + offset + after))  # 0 for queries before the first key
            slices.append((slice(start, end), slice(max(0, start + offset - before), stop)))
        return slices

    def weights(self, rows: slice, keys: slice) -> Tensor:
        """Compute the attention weights (G, n, e) of a slice, without dropout.

        Scores in bf16 are not converted to fp32, because torch computes their softmax in fp32.
        """
        q, k = self.q[:, rows], self.k[:, keys]
        n, e = q.shape[1], k.shape[1]
        # For one query, torch would copy keys that are part of a larger buffer in the other order.
        scores = torch.bmm(k, q.mT).mT if n == 1 else torch.bmm(q, k.mT)
        by_head = scores.unflatten(0, (-1, self.n_heads))
        if self.bias is not None:
            by_head += _select(self.bias, rows, keys)
        allowed = None if self.mask is None else _select(self.mask, rows, keys)
        if self.window is not None:
            column, key = (torch.arange(s.start, s.stop, device=q.device) for s in (rows, keys))
            distance = column[:, None] + (self.k.shape[1] - self.q.shape[1]) - key
            near = (distance < self.window) & (distance > (-1 if self.causal else -self.window))
            allowed = near if allowed is None else allowed & near
        elif self.causal:
            by_head = by_head[..., e - n :]  # all earlier keys are visible
            allowed = torch.ones(n, n, dtype=torch.bool, device=q.device).tril()
        if allowed is None:
            return scores.softmax(-1)
        # An addition is four times as fast as `masked_fill` on the scores. With -inf, the weights
        # of a query without keys would be NaN; the most negative number would overflow in the sum.
        hidden = torch.zeros(allowed.shape, dtype=scores.dtype, device=q.device)
        hidden.masked_fill_(~allowed, torch.finfo(scores.dtype).min / 2)
        by_head += hidden
        weights = scores.softmax(-1)
        if self.mask is None and self.q.shape[1] <= self.k.shape[1]:  # each query has a key
            return weights
        empty = ~allowed.any(-1, keepdim=True)
        if bool(empty.any()):
            weights.view_as(by_head).masked_fill_(empty, 0.0)
        return weights

    def attend(self, saved: list[Tensor | None] | None) -> Tensor:
        """Compute the outputs (G, Tq, Dv) of attention.

        `saved` gets two elements per slice for `gradients`: the attention weights (None if they
        need too much memory) and the dropout factors (None without dropout).
        """
        slices = self.slices()
        n_keys = max((keys.stop - keys.start for _, keys in slices), default=0)
        saves_weights = self.q.shape[1] * n_keys <= MAX_SAVED_WEIGHTS
        y = self.q.new_empty(*self.q.shape[:2], self.v.shape[2])
        with torch.autocast(y.device.type, enabled=False):
            for rows, keys in slices:
                weights = dropped = self.weights(rows, keys)
                drop = None
                if self.dropout_p:
                    kept, factor = keep_mask(weights, self.dropout_p)
                    drop = kept.to(weights.dtype).mul_(factor)
                    dropped = weights * drop
                if saved is not None:
                    saved += [weights if saves_weights else None, drop]
                y[:, rows] = _mix(dropped, self.v[:, keys])
        return y

    def gradients(
        self, grad: Tensor, saved: Sequence[Tensor | None], needs_bias: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Compute the gradients of q, k, v and bias from that of the outputs, (G, Tq, Dv).

        `saved` is the list that `attend` extended. The gradient of the bias may be None.
        """
        q, k, v, _, bias = self[:5]
        slices = self.slices()
        several = [keys for _, keys in slices] != [slice(0, k.shape[1])]
        sum_dtype = torch.promote_types(q.dtype, torch.float32)
        dq, dbias = torch.empty_like(q), None
        if several:
            dk, dv = (torch.zeros_like(x, dtype=sum_dtype) for x in (k, v))
        if bias is not None and needs_bias:
            dbias = torch.zeros_like(bias, dtype=sum_dtype)
        with torch.autocast(q.device.type, enabled=False):
            for (rows, keys), weights, drop in zip(slices, saved[::2], saved[1::2], strict=True):
                weights = self.weights(rows, keys) if weights is None else weights
                dy, dropped = grad[:, rows], weights
                dweights = torch.bmm(dy, v[:, keys].mT)
                if drop is not None:
                    dweights, dropped = dweights * drop, weights * drop
                dscores = torch.ops.aten._softmax_backward_data(
                    dweights, weights, -1, weights.dtype
                )
                if dbias is not None:
                    part = _select(dbias, rows, keys)
                    by_head = dscores.unflatten(0, (-1, self.n_heads)).to(dbias.dtype)
                    part += by_head.sum_to_size(part.shape)
                dq[:, rows] = torch.bmm(dscores, k[:, keys])
                dk_part, dv_part = torch.bmm(dscores.mT, q[:, rows]), torch.bmm(dropped.mT, dy)
                if several:
                    dk[:, keys] += dk_part
                    dv[:, keys] += dv_part
                else:
                    dk, dv = dk_part, dv_part
        dk, dv = dk.to(q.dtype), dv.to(q.dtype)
        return dq, dk, dv, None if dbias is None or bias is None else dbias.to(bias.dtype)


def _select(x: Tensor, rows: slice, keys: slice) -> Tensor:
    """Select the queries and keys of a slice from a mask or bias with four dimensions."""
    every = slice(None)
    return x[:, :, rows if x.shape[2] > 1 else every, keys if x.shape[3] > 1 else every]


def window_is_faster(window: int | None, keys: Tensor | None, q_len: int, k_len: int) -> bool:
    """Return True if `attend_by_products` supports a window for these keys and saves time by it.

    The kernel measures distances in columns. Therefore the real tokens in each row of the padding
    mask `keys` (B, Tk) must be consecutive. If there are fewer queries than keys, the last column
    must hold a real token in each row.
    """
    if window is None or torch.compiler.is_compiling():
        return False
    if k_len < MIN_SLICED_KEYS or k_len < MIN_KEYS_PER_WINDOW * window or q_len > k_len:
        return False
    if keys is None:
        return True
    starts = keys[:, 0] + (keys[:, 1:] & ~keys[:, :-1]).sum(1)  # of real tokens
    at_end = q_len == k_len or bool(keys[:, -1].all())
    return at_end and bool((starts <= 1).all())


def attend_by_products(
    q: Tensor, k: Tensor, v: Tensor, mask: Any, bias: Any, causal: bool, *settings: Any
) -> Tensor:
    """Compute attention (B, H, Tq, Dv) by matrix products over slices of the queries.

    The arguments are those of `fourfold.core.attention.attend`; `settings` are scale, dropout_p and
    window. Without a window, `causal` must not be combined with a mask or a bias. A window is not
    supported in compiled code.
    """
    scale, dropout_p, window = settings
    if (groups := q.shape[1] // k.shape[1]) > 1:
        k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
    mask, bias = (None if x is None else x[(None,) * (4 - x.dim())] for x in (mask, bias))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    learns = any(x is not None and x.requires_grad for x in (q, k, v, bias))
    needs_grad = torch.is_grad_enabled() and learns
    compiling = torch.compiler.is_compiling()
    # Eager code computes the outputs before autograd records anything: `_Attention` only connects
    # them to the gradients.
    with torch.no_grad() if needs_grad and not compiling else nullcontext():
        merged = (q * scale).flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
        inputs = Inputs(*merged, mask, bias, causal, dropout_p, q.shape[1], window)
        if compiling:
            assert window is None, "the compiled operator has no window"
            return _operator(*inputs[:8], needs_grad)[0].unflatten(0, q.shape[:2])
        saved: list[Tensor | None] = []
        y = inputs.attend(saved if needs_grad else None).unflatten(0, q.shape[:2])
    return _Attention.apply(y, q, k, v, bias, scale, inputs, saved) if needs_grad else y


class _Attention(torch.autograd.Function):
    """Gradients of `attend_by_products` in eager mode."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, q: Tensor, *given: Any) -> Tensor:
        _, _, _, scale, inputs, saved = given
        ctx.save_for_backward(*inputs[:5], *saved)
        ctx.settings, ctx.scale, ctx.heads = inputs[5:], scale, q.shape[:2]
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # only with create_graph=True
            message = "has no second derivative; use `with attention_backend('naive')` in its place"
            raise InputError(message, option="attention")
        q, k, v, mask, bias, *saved = ctx.saved_tensors
        inputs = Inputs(q, k, v, mask, bias, *ctx.settings)
        dq, dk, dv, dbias = inputs.gradients(grad.flatten(0, 1), saved, ctx.needs_input_grad[4])
        dq *= ctx.scale
        return None, *(dx.unflatten(0, ctx.heads) for dx in (dq, dk, dv)), dbias, None, None, None


# Compiled code calls the following operators, with the fields of `Inputs` but the window. The
# weights of all slices are saved in one tensor, and the dropout factors in another one. A tensor is
# empty if nothing is saved.
@torch.library.custom_op(
    "fourfold::attention", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def _operator(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    dropout_p: float,
    n_heads: int,
    needs_grad: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    saved: list[Tensor | None] = []
    inputs = Inputs(q, k, v, mask, bias, causal, dropout_p, n_heads)
    y = inputs.attend(saved if needs_grad else None)
    return y, _joined(saved[::2], q), _joined(saved[1::2], q)


@_operator.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *settings: Any) -> tuple[Tensor, Tensor, Tensor]:
    _, _, causal, dropout_p, _, needs_grad = settings
    n_scores = q.shape[1] * k.shape[1]
    saves_weights = needs_grad and n_scores <= MAX_SAVED_WEIGHTS
    if causal:  # the n-th slice has n * CAUSAL_SLICE keys
        n_full, rest = q.shape[1] // CAUSAL_SLICE, q.shape[1] % CAUSAL_SLICE
        n_scores = CAUSAL_SLICE**2 * (n_full * (n_full + 1) // 2) + rest * q.shape[1]
    return (
        q.new_empty(*q.shape[:2], v.shape[2]),
        q.new_empty(q.shape[0] * n_scores if saves_weights else 0),
        q.new_empty(q.shape[0] * n_scores if needs_grad and dropout_p else 0),
    )


@torch.library.custom_op("fourfold::attention_backward", mutates_args=())
def _backward_operator(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    weights: Tensor,
    drop: Tensor,
    causal: bool,
    dropout_p: float,
    n_heads: int,
    needs_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    inputs = Inputs(q, k, v, mask, bias, causal, dropout_p, n_heads)
    sizes = [(len(q), rows.stop - rows.start, keys.stop) for rows, keys in inputs.slices()]
    pairs = zip(_split(weights, sizes), _split(drop, sizes), strict=True)
    dq, dk, dv, dbias = inputs.gradients(grad, [*chain(*pairs)], needs_bias)
    dbias = q.new_empty(0) if dbias is None else dbias
    return dq.contiguous(), dk.contiguous(), dv.contiguous(), dbias.contiguous()


@_backward_operator.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, _: Any, bias: Any, *settings: Any) -> Any:
    dbias = bias.new_empty(bias.shape) if settings[-1] else q.new_empty(0)
    return *(q.new_empty(x.shape) for x in (q, k, v)), dbias


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:5], *output[1:])
    ctx.settings = inputs[5:8]


def _backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    needs_bias = ctx.needs_input_grad[4]
    dq, dk, dv, dbias = _backward_operator(grad, *ctx.saved_tensors, *ctx.settings, needs_bias)
    return dq, dk, dv, None, dbias if needs_bias else None, *[None] * 4


_operator.register_autograd(_backward, setup_context=_save)


def _joined(parts: Sequence[Tensor | None], like: Tensor) -> Tensor:
    """Concatenate what the slices saved to one dimension, without a copy if there is one slice."""
    flat = [part.flatten() for part in parts if part is not None]
    return flat[0] if len(flat) == 1 else torch.cat([like.new_empty(0), *flat])


def _split(joined: Tensor, sizes: Sequence[tuple[int, ...]]) -> list[Tensor | None]:
    """Split a result of `_joined` into one tensor per slice, or None if nothing was saved."""
    if not len(joined):
        return [None] * len(sizes)
    parts = joined.split([math.prod(size) for size in sizes])
    return [part.view(size) for part, size in zip(parts, sizes, strict=True)]


def _mix(weights: Tensor, values: Tensor) -> Tensor:
    """Compute the product (G, n, Dv) of weights (G, n, e) and values (G, e, Dv).

    For one query and values that are rows of one buffer, it is a faster weighted sum of rows.
    """
    heads, n, e = weights.shape
    width = values.shape[2]
    strides = values.stride()
    step, remainder = divmod(strides[0], max(1, width))  # in rows, from one head to the next
    is_table = not remainder and strides[1:] == (width, 1)
    if not (n == 1 and is_table and values.numel() and supports_weighted_sums(values)):
        return torch.bmm(weights, values)
    table = values.as_strided(((heads - 1) * step + e, width), (width, 1))
    return weighted_sums(table, consecutive_terms(heads, e, step), weights.flatten()).unsqueeze(1)
