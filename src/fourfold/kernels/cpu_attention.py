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
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fourfold.kernels.cpu_decoding import consecutive_terms, supports_weighted_sums, weighted_sums
from fourfold.kernels.differentiation import differentiable_once
from fourfold.kernels.dropout import keep_mask

CAUSAL_SLICE = 128  # queries; small enough to skip many hidden keys, large enough to be fast
WINDOW_SLICE = 32  # queries; few keys outside the windows of these queries are read
MAX_SLICE_SCORES = 2**22  # attention scores of a slice without a causal mask
# Least number of keys, and least ratio of keys to window, for which this kernel applies a window.
MIN_SLICED_KEYS = 256
MIN_KEYS_PER_WINDOW = 4
# Attention weights of one head that are saved. More weights are recomputed in the backward pass.
MAX_SAVED_WEIGHTS = 2**18


class QuerySlice(NamedTuple):
    """Slice of the queries, with the range of the keys that these queries may attend to.

    Attributes:
        rows: Range of the indices of the queries.
        keys: Range of the indices of the keys.
    """

    rows: slice
    keys: slice

    def select(self, x: Tensor) -> Tensor:
        """Select the queries and keys of the slice from a mask or a bias.

        Args:
            x: Tensor with four dimensions, broadcastable to (B, H, Tq, Tk).

        Returns:
            View of `x`, broadcastable to (B, H, n, e).
        """
        rows = self.rows if x.shape[2] > 1 else slice(None)
        keys = self.keys if x.shape[3] > 1 else slice(None)
        return x[:, :, rows, keys]


class Inputs(NamedTuple):
    """Arguments of attention, and the computation of attention from them.

    The constructor takes queries, keys and values with four dimensions, such as (B, H, Tq, Dh).
    `merge_heads` scales the queries and merges the dimensions B and H to G = B H. The attributes
    below are those after this call, which all other methods require.

    Attributes:
        q: Queries (G, Tq, Dh), multiplied by `scale`.
        k: Keys (G, Tk, Dh).
        v: Values (G, Tk, Dv).
        mask: Bool with four dimensions, broadcastable to (B, H, Tq, Tk), or None.
        bias: Tensor added to the scores, with four dimensions, broadcastable to (B, H, Tq, Tk), or
            None.
        causal: Hide the keys after a query. Without a window, Tq must equal Tk.
        scale: Factor on the scores.
        dropout_p: Dropout probability of the weights.
        heads: Shape (B, H) of the merged dimensions.
        window: Hide keys whose distance to the query is at least this number of columns. The last
            query has the column of the last key. None means no window.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    bias: Tensor | None
    causal: bool
    scale: float
    dropout_p: float
    heads: torch.Size
    window: int | None = None

    def merge_heads(self) -> "Inputs":
        """Return inputs with scaled queries, and with batch and heads merged to one dimension."""
        q, k, v = ((self.q * self.scale).flatten(0, 1), self.k.flatten(0, 1), self.v.flatten(0, 1))
        return Inputs(q, k, v, *self[3:])

    def slices(self) -> list[QuerySlice]:
        """Divide the queries into a list of slices, each with the keys that they may attend to."""
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
            keys = slice(max(0, start + offset - before), stop)
            slices.append(QuerySlice(slice(start, end), keys))
        return slices

    def near(self, part: QuerySlice) -> Tensor:
        """Return a bool mask (n, e), True = the window of the query contains the key.

        Args:
            part: Slice of n queries and e keys.
        """
        assert self.window is not None
        offset = self.k.shape[1] - self.q.shape[1]
        q, k = (torch.arange(s.start, s.stop, device=self.q.device) for s in part)
        distances = q[:, None] + offset - k
        return (distances < self.window) & (distances > (-1 if self.causal else -self.window))

    def weights(self, part: QuerySlice) -> Tensor:
        """Compute the attention weights (G, n, e) of a slice, without dropout.

        The weights of a query are 0 if the mask hides all keys of the query. Scores in bf16 are not
        converted to fp32, because torch computes their softmax in fp32.

        Args:
            part: Slice of n queries and e keys.
        """
        rows = self.q[:, part.rows]
        keys = self.k[:, part.keys]
        n, e = rows.shape[1], keys.shape[1]
        # For one query, torch would copy keys that are part of a larger buffer in the other order.
        scores = torch.bmm(keys, rows.mT).mT if n == 1 else torch.bmm(rows, keys.mT)
        by_head = scores.view(*self.heads, n, e)
        if self.bias is not None:
            by_head += part.select(self.bias)
        allowed = None if self.mask is None else part.select(self.mask)
        if self.window is not None:
            near = self.near(part)
            allowed = near if allowed is None else allowed & near
        elif self.causal:
            visible = torch.ones(n, n, dtype=torch.bool, device=rows.device).tril()
            scores[:, :, e - n :] += _additive_mask(visible, scores.dtype)
        if allowed is None:
            return scores.softmax(-1)
        by_head += _additive_mask(allowed, scores.dtype)
        weights = scores.softmax(-1)
        if self.mask is None and self.q.shape[1] <= self.k.shape[1]:  # each query has a key
            return weights
        empty = ~allowed.any(-1, keepdim=True)
        if bool(empty.any()):
            weights.view_as(by_head).masked_fill_(empty, 0.0)
        return weights

    def attend(self, saved: list[Tensor | None] | None = None) -> Tensor:
        """Compute the outputs of attention, (B, H, Tq, Dv).

        Args:
            saved: List of tensors for the backward pass, which is extended in place. For each slice
                of queries, two elements are appended: the attention weights, or None if they need
                too much memory, and the dropout factors, or None without dropout. None if no
                backward pass follows.
        """
        slices = self.slices()
        n_keys = max((part.keys.stop - part.keys.start for part in slices), default=0)
        saves_weights = self.q.shape[1] * n_keys <= MAX_SAVED_WEIGHTS
        y = self.q.new_empty(*self.q.shape[:2], self.v.shape[2])
        with torch.autocast(y.device.type, enabled=False):
            for part in slices:
                weights = dropped = self.weights(part)
                drop = None
                if self.dropout_p:
                    kept, factor = keep_mask(weights, self.dropout_p)
                    drop = kept.to(weights.dtype).mul_(factor)
                    dropped = weights * drop
                if saved is not None:
                    saved += [weights if saves_weights else None, drop]
                y[:, part.rows] = _mix(dropped, self.v[:, part.keys])
        return y.unflatten(0, self.heads)


def products_are_faster(q: Tensor, k_len: int, dropout_p: float) -> bool:
    """Return True if this kernel is faster than torch's fused kernel, according to measurements.

    The result is True in these cases on a CPU:

    - Training in bf16, and training with dropout: 5 times as fast at 16 tokens, 3 times at 128 and
      twice at 512 (forward and backward pass in bf16 on two cores).
    - Inference in bf16 with more than 8 queries and at least 2**15 attention scores: 1.1 to 2 times
      as fast.
    - Decoding of several sequences with one query each: 2 to 7 times as fast.
    - Decoding of several sequences in bf16, with up to 8 queries each (such as the beams of a
      source) and at most 32 keys: 2 to 7 times as fast.

    Args:
        q: Queries (B, H, Tq, Dh).
        k_len: Number of keys Tk.
        dropout_p: Dropout probability of the weights.
    """
    if q.device.type != "cpu":
        return False
    is_bf16 = q.dtype == torch.bfloat16
    if torch.is_grad_enabled() and q.requires_grad:
        return is_bf16 or dropout_p > 0.0
    if q.shape[2] > 8:
        return is_bf16 and math.prod(q.shape[:3]) * k_len >= 2**15
    return q.shape[0] > 1 and q.shape[2] <= (8 if is_bf16 and k_len <= 32 else 1)


def window_is_faster(window: int | None, keys: Tensor | None, q_len: int, k_len: int) -> bool:
    """Return True if `attend_by_products` supports a window for these keys and saves time by it.

    The kernel measures distances in columns. Therefore the real tokens in each row of the mask must
    be consecutive. If there are fewer queries than keys, the last column must hold a real token in
    each row.

    Args:
        window: Window of the attention pattern, or None.
        keys: (B, Tk) bool, True = real token; None means that all tokens are real.
        q_len: Number of queries Tq.
        k_len: Number of keys Tk.
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
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    scale: float | None,
    dropout_p: float,
    window: int | None = None,
) -> Tensor:
    """Compute the outputs of attention by matrix products over slices of the queries.

    Args:
        q: Queries (B, H, Tq, Dh).
        k: Keys (B, H, Tk, Dh).
        v: Values (B, H, Tk, Dv).
        mask: Bool, True = may attend, broadcastable to (B, H, Tq, Tk), or None.
        bias: Tensor added to the scores, broadcastable to (B, H, Tq, Tk), or None.
        causal: Hide the keys after a query. Without a window, `causal` must not be combined with a
            mask or a bias.
        scale: Factor on the scores; None means 1 / sqrt(Dh).
        dropout_p: Dropout probability of the weights.
        window: Hide keys whose distance to the query is at least this number of columns. None means
            no window. A window is not supported in compiled code.

    Returns:
        Outputs (B, H, Tq, Dv).
    """
    mask, bias = (None if x is None else x[(None,) * (4 - x.dim())] for x in (mask, bias))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    inputs = Inputs(q, k, v, mask, bias, causal, scale, dropout_p, q.shape[:2], window)
    if torch.compiler.is_compiling():
        assert window is None, "the compiled operator has no window"
        inputs = inputs.merge_heads()
        learns = [x is not None and x.requires_grad for x in inputs[:5]]
        needs_grad = torch.is_grad_enabled() and any(learns)
        y, _, _ = _operator(*inputs[:6], dropout_p, q.shape[0], needs_grad)
        return y.unflatten(0, inputs.heads)
    if torch.is_grad_enabled():
        return _Attention.apply(*inputs)
    return inputs.merge_heads().attend()  # saves the overhead of autograd


class _Attention(torch.autograd.Function):
    """Autograd function of `attend_by_products` in eager mode.

    The forward pass saves the attention weights of each slice of queries for the backward pass. The
    arguments of `forward` are the fields of `Inputs`, before `merge_heads`.
    """

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        inputs = Inputs(*arguments).merge_heads()
        saved: list[Tensor | None] = []
        y = inputs.attend(saved)
        ctx.save_for_backward(*inputs[:5], *saved)
        ctx.settings = inputs[5:]
        return y

    @staticmethod
    @differentiable_once("attention", "`with attention_backend('naive')`")
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, mask, bias, *saved = ctx.saved_tensors
        inputs = Inputs(q, k, v, mask, bias, *ctx.settings)
        dq, dk, dv, dbias = _gradients(inputs, grad.flatten(0, 1), saved, ctx.needs_input_grad[4])
        dq *= inputs.scale
        dq, dk, dv = (dx.unflatten(0, inputs.heads) for dx in (dq, dk, dv))
        return dq, dk, dv, None, dbias, None, None, None, None, None


def _gradients(
    inputs: Inputs, grad: Tensor, saved: Sequence[Tensor | None], needs_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Compute the gradients of attention.

    Args:
        inputs: Inputs after `merge_heads`.
        grad: Gradient (G, Tq, Dv) of the outputs.
        saved: Two elements for each slice of the queries, as `Inputs.attend` stores them: the
            attention weights or None, and the dropout factors or None.
        needs_bias: Compute the gradient of the bias.

    Returns:
        A tuple of the gradients of the scaled queries, the keys, the values and the bias, in the
        shapes of these tensors. The gradient of the bias is None if it is not needed.
    """
    q, k, v, _, bias = inputs[:5]
    slices = inputs.slices()
    several = [part.keys for part in slices] != [slice(0, k.shape[1])]
    sum_dtype = torch.promote_types(q.dtype, torch.float32)
    dq = torch.empty_like(q)
    if several:
        dk, dv = (torch.zeros_like(x, dtype=sum_dtype) for x in (k, v))
    dbias = None
    if bias is not None and needs_bias:
        dbias = torch.zeros_like(bias, dtype=sum_dtype)
    with torch.autocast(q.device.type, enabled=False):
        for part, weights, drop in zip(slices, saved[::2], saved[1::2], strict=True):
            rows, keys = part
            if weights is None:
                weights = inputs.weights(part)
            dy = grad[:, rows]
            dweights = torch.bmm(dy, v[:, keys].mT)
            dropped = weights
            if drop is not None:
                dweights = dweights * drop
                dropped = weights * drop
            dscores = torch.ops.aten._softmax_backward_data(dweights, weights, -1, weights.dtype)
            if dbias is not None:
                dbias_part = part.select(dbias)
                by_head = dscores.unflatten(0, inputs.heads).to(dbias.dtype)
                dbias_part += by_head.sum_to_size(dbias_part.shape)
            dq[:, rows] = torch.bmm(dscores, k[:, keys])
            dk_part, dv_part = torch.bmm(dscores.mT, q[:, rows]), torch.bmm(dropped.mT, dy)
            if several:
                dk[:, keys] += dk_part
                dv[:, keys] += dv_part
            else:
                dk, dv = dk_part, dv_part
    dk, dv = dk.to(q.dtype), dv.to(q.dtype)
    return dq, dk, dv, None if dbias is None or bias is None else dbias.to(bias.dtype)


# Compiled code calls the following operators. Queries, keys and values have the shape after
# `merge_heads`, and `batch` is B. The weights of all slices are saved in one tensor, and the
# dropout factors in another tensor. A tensor is empty if nothing is saved.
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
    batch: int,
    needs_grad: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    inputs = _merged(q, k, v, mask, bias, causal, dropout_p, batch)
    saved: list[Tensor | None] = []
    y = inputs.attend(saved if needs_grad else None).flatten(0, 1)
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
    batch: int,
    needs_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    inputs = _merged(q, k, v, mask, bias, causal, dropout_p, batch)
    slices = inputs.slices()
    sizes = [(len(q), len(range(q.shape[1])[rows]), keys.stop) for rows, keys in slices]
    pairs = zip(_split(weights, sizes), _split(drop, sizes), strict=True)
    dq, dk, dv, dbias = _gradients(inputs, grad, [*chain(*pairs)], needs_bias)
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


def _merged(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    dropout_p: float,
    batch: int,
) -> Inputs:
    """Build `Inputs` from the arguments of an operator.

    Queries (G, Tq, Dh) are already scaled, and batch and heads are merged to G = B H.
    """
    heads = torch.Size((batch, len(q) // batch))
    return Inputs(q, k, v, mask, bias, causal, 1.0, dropout_p, heads)


def _joined(parts: Sequence[Tensor | None], like: Tensor) -> Tensor:
    """Flatten tensors that were saved for the backward pass, and concatenate them.

    Args:
        parts: A tensor of any shape for each slice, or None if the slice saved nothing.
        like: Tensor that gives the result its data type and device if no slice saved anything.

    Returns:
        A tensor of one dimension, without a copy if there is only one slice.
    """
    flat = [part.flatten() for part in parts if part is not None]
    return flat[0] if len(flat) == 1 else torch.cat([like.new_empty(0), *flat])


def _split(joined: Tensor, sizes: Sequence[tuple[int, ...]]) -> list[Tensor | None]:
    """Split a result of `_joined` into tensors, one for each slice.

    Args:
        joined: A tensor of one dimension, which is empty if the slices saved nothing.
        sizes: Shape of the tensor of each slice.

    Returns:
        List of tensors, or of None for each slice if `joined` is empty.
    """
    if not len(joined):
        return [None] * len(sizes)
    parts = joined.split([math.prod(size) for size in sizes])
    return [part.view(size) for part, size in zip(parts, sizes, strict=True)]


def _mix(weights: Tensor, values: Tensor) -> Tensor:
    """Compute the matrix product of weights (G, n, e) and values (G, e, Dv), (G, n, Dv).

    For one query and values that are rows of one buffer, the product is a weighted sum of rows,
    which is faster in decoding.
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


def _additive_mask(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert a bool mask to a tensor that is added to the scores.

    The addition is four times as fast as `masked_fill` on the scores.

    Args:
        allowed: Bool mask of any shape, True = may attend.
        dtype: Data type of the scores.

    Returns:
        Tensor of the same shape: 0 for allowed keys, and half of the most negative number of
        `dtype` for hidden keys. With -inf, the weights of a query without allowed keys would be
        NaN. With the most negative number, the sum with a negative score would overflow.
    """
    additive = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    return additive.masked_fill_(~allowed, torch.finfo(dtype).min / 2)
