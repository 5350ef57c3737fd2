"""Scaled dot-product and multi-head attention (Vaswani et al. 2017, section 3.2); backend choice.

`Attention.normalize` maps scores to weights and is `softmax` by default. An assignment of another
function, such as ``Attention.normalize = staticmethod(entmax15)``, changes training, evaluation,
decoding and attention maps alike.

Shapes: B batch, S source sequences (S = B; in beam search, S = B / number of beams), H heads, K
heads of keys and values (H, or a divisor of H), Tq queries, Tk keys, D model width, Dh head width,
Dv value width.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import cache as cache_result

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_mask, flex_attention

from fourfold.core.config import QKNorm, head_width
from fourfold.core.kv_cache import LayerCache
from fourfold.core.masks import LoweredMask, Mask, causal_mask
from fourfold.core.rotary import Rotation, rotate
from fourfold.core.validation import check_choice
from fourfold.kernels.autocast import cast_once
from fourfold.kernels.cpu_attention import attend_by_products, products_are_faster, window_is_faster
from fourfold.kernels.cpu_decoding import Linear
from fourfold.kernels.cuda_attention import attend_masked

BACKENDS = ("auto", "naive", "sdpa", "flex")
# Largest number of queries for which the H / K heads that share keys are passed to the kernel as
# H / K times as many queries of one head, so that it reads each key once. On one core of an Intel
# Xeon (model 207), a query with 8 heads, 2 heads of keys and 512 keys then takes 29 us in place of
# 53 us in fp32, and 40 us in place of 431 us in bf16.
MAX_FOLDED_QUERIES = 8
_backend: ContextVar[str] = ContextVar("attention_backend", default="auto")


@contextmanager
def attention_backend(name: str) -> Iterator[None]:
    """Run all attention in this context on one backend.

    Args:
        name: auto (the fastest kernel for the device and the arguments), naive (matrix products and
            softmax), sdpa (`torch.nn.functional.scaled_dot_product_attention`) or flex
            (FlexAttention with a BlockMask in place of a dense mask; sdpa if no mask is needed, or
            with bias or dropout).

    Raises:
        InputError: `name` is none of these backends.

    Example:
        >>> q, k, v = torch.randn(3, 1, 2, 5, 8)
        >>> with attention_backend("naive"):
        ...     by_products = attend(q, k, v)
        >>> torch.allclose(attend(q, k, v), by_products, atol=1e-6)
        True
    """
    check_choice("attention_backend", name, BACKENDS)
    token = _backend.set(name)
    try:
        yield
    finally:
        _backend.reset(token)


def lower_mask(
    mask: Mask, q_len: int, k_len: int, like: Tensor, *, dense: bool = False
) -> LoweredMask:
    """Convert a mask to the form that the current attention backend takes.

    On CUDA, the backend auto uses a BlockMask for packed documents and local windows, because
    FlexAttention skips blocks in which all pairs of query and key are hidden. On a CPU, it leaves a
    short window to `attend_by_products`, which reads only the keys near each query.

    Args:
        mask: The attention pattern.
        q_len: Number of queries Tq.
        k_len: Number of keys Tk.
        like: A tensor on the device of the result.
        dense: Never return a BlockMask, which supports neither bias nor dropout.

    Example:
        >>> lowered = lower_mask(Mask(causal=True), 3, 3, torch.empty(0))
        >>> lowered.causal, lowered.mask  # the kernel applies the causal mask itself
        (True, None)
        >>> keys = torch.tensor([[True, True, False]])  # the last token is padding
        >>> lower_mask(Mask(keys=keys), 3, 3, torch.empty(0)).mask[0, 0].int().tolist()
        [[1, 1, 0]]
    """
    sparse = mask.documents is not None or mask.window is not None
    backend = _backend.get()
    takes_window = backend == "auto" and like.device.type == "cpu" and not mask.n_global
    if takes_window and window_is_faster(mask.window, mask.keys, q_len, k_len):
        rest = replace(mask, causal=False, window=None).lower(q_len, k_len, like.device)
        return LoweredMask(rest.mask, mask.causal and q_len > 1, mask.window)
    # The search for the visible blocks takes longer than attention with a single query.
    flex = backend == "flex" or (backend == "auto" and like.is_cuda and sparse and q_len > 1)
    return mask.lower(q_len, k_len, like.device, flex=flex and not dense)


def softmax(scores: Tensor) -> Tensor:
    """Apply softmax over the keys to scores (B, H, Tq, Tk); a score of -inf gives a weight of 0.

    Source: Vaswani et al. 2017, equation 1.

    Example:
        >>> softmax(torch.tensor([0.0, 0.0, float("-inf")]))
        tensor([0.5000, 0.5000, 0.0000])
    """
    return scores.softmax(-1)


def attention_weights(
    q: Tensor,
    k: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | None = None,
    normalize: Callable[[Tensor], Tensor] = softmax,
) -> Tensor:
    """Compute the attention weights, normalize(scale q k^T + bias) over the allowed keys.

    The product with the values completes Vaswani et al. 2017, equation 1, which `attend` computes.
    The arguments have the same meaning as in `attend`, but `mask` must not be a BlockMask.

    Returns:
        Weights (B, H, Tq, Tk) in fp32, or in fp64 for a q in fp64; 0 for a query that may attend to
        no key.

    Example:
        >>> q, k = torch.randn(2, 1, 1, 3, 8)
        >>> weights = attention_weights(q, k, mask=causal_mask(3, 3, q.device))
        >>> weights[0, 0, 0]  # the first query may attend to the first key only
        tensor([1., 0., 0.])
        >>> weights.sum(-1).allclose(torch.ones(3))
        True
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    k = repeat_heads(k, q.shape[-3])
    scores = q.to(dtype) @ k.to(dtype).mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + bias
    if mask is None:
        return normalize(scores)
    weights = normalize(scores.masked_fill(~mask, float("-inf")))
    return weights.masked_fill(~mask, 0.0)  # also replaces the NaN of a row without allowed keys


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | BlockMask | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    normalize: Callable[[Tensor], Tensor] = softmax,
) -> Tensor:
    """Compute attention on the fastest kernel that supports the arguments.

    Args:
        q: Queries (B, H, Tq, Dh).
        k: Keys (B, K, Tk, Dh). Head i serves the heads from i H/K to (i + 1) H/K - 1 of the queries
            (grouped-query attention, Ainslie et al. 2023).
        v: Values (B, K, Tk, Dv).
        mask: Bool tensor, True = may attend, broadcastable to (B, H, Tq, Tk), or a BlockMask. A
            BlockMask must already contain the causal mask, and supports neither bias nor dropout.
        bias: Tensor added to the scores, broadcastable to (B, H, Tq, Tk).
        causal: Apply a causal mask, in which the last query may attend to every key.
        window: Hide keys that are this many columns or more away from the query. The last query has
            the column of the last key. None means no window.
        scale: Factor on the scores; None means 1 / sqrt(Dh).
        dropout_p: Dropout probability of the weights.
        normalize: Function from scores to weights, over the last dimension. For any function but
            `softmax` the scores are materialized, because fused kernels support only `softmax`.

    Returns:
        (B, H, Tq, Dv); 0 for a query that may attend to no key.

    Example:
        >>> q, k, v = torch.randn(3, 1, 2, 5, 8)
        >>> attend(q, k, v, causal=True).shape
        torch.Size([1, 2, 5, 8])
    """
    backend = _backend.get()
    # No fused kernel supports the transforms of torch.func, such as vmap and repeated grad.
    transformed = torch._C._are_functorch_transforms_active()
    explicit = backend == "naive" or normalize is not softmax or transformed
    if isinstance(mask, BlockMask) and not explicit:
        assert bias is None, "lower the mask with dense=True"
        assert dropout_p == 0.0, "lower the mask with dense=True"
        assert not causal, "a BlockMask includes causality"
        assert window is None, "a BlockMask includes the window"
        is_grouped = k.shape[1] < q.shape[1]
        return _flex(q.is_cuda)(q, k, v, block_mask=mask, scale=scale, enable_gqa=is_grouped)
    eager_cpu = q.device.type == "cpu" and not torch.compiler.is_compiling()
    if window is not None and backend == "auto" and eager_cpu and not explicit:
        assert not isinstance(mask, BlockMask)
        k, v = (repeat_heads(x, q.shape[1]) for x in (k, v))
        return attend_by_products(q, k, v, mask, bias, causal, scale, dropout_p, window)
    is_square = q.shape[2] == k.shape[2]
    if explicit or mask is not None or window or bias is not None or not is_square:
        mask, causal = dense_mask(mask, causal, window, q, k), False
    if explicit:
        weights = attention_weights(q, k, mask=mask, bias=bias, scale=scale, normalize=normalize)
        return F.dropout(weights.to(v.dtype), dropout_p) @ repeat_heads(v, q.shape[1])
    return _attend_fused(q, k, v, mask, bias, causal, scale, dropout_p)


def _attend_fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    causal: bool,
    scale: float | None,
    dropout_p: float,
) -> Tensor:
    """Compute attention with a dense mask, or a causal mask, on the fastest kernel."""
    exporting = torch.compiler.is_exporting()  # an exported graph has operators of torch only
    n_heads, groups = q.shape[1], q.shape[1] // k.shape[1]
    has_one_mask = bias is None and (mask is None or mask.dim() < 3 or mask.shape[-3] == 1)
    folds = groups > 1 and has_one_mask and not causal and not exporting
    if folds and (q_len := q.shape[2]) <= MAX_FOLDED_QUERIES:
        if mask is not None and mask.shape[-2] > 1:
            mask = torch.cat([mask] * groups, dim=-2)
        q = q.reshape(len(q), k.shape[1], groups * q_len, k.shape[3])  # (B, K, H/K Tq, Dh)
        y = _attend_fused(q, k, v, mask, None, False, scale, dropout_p)
        return y.reshape(len(y), n_heads, q_len, v.shape[3])
    if _backend.get() == "auto" and not exporting and products_are_faster(q, k.shape[2], dropout_p):
        k, v = (repeat_heads(x, n_heads) for x in (k, v))
        return attend_by_products(q, k, v, mask, bias, causal, scale, dropout_p)
    allowed = mask
    if bias is not None:
        bias = bias.to(q.dtype)
        mask = bias if mask is None else bias.masked_fill(~mask, float("-inf"))
    if q.is_cuda and mask is not None:  # torch's kernels for masks do not support grouped heads
        k, v, groups = repeat_heads(k, n_heads), repeat_heads(v, n_heads), 1
        if not exporting:
            return attend_masked(q, k, v, mask, allowed, dropout_p, scale)
    return F.scaled_dot_product_attention(
        *(q, k, v), mask, dropout_p, is_causal=causal, scale=scale, enable_gqa=groups > 1
    )


def repeat_heads(x: Tensor, n_heads: int) -> Tensor:
    """Repeat each head of keys or values x (B, K, Tk, Dh), for H = `n_heads` heads of queries.

    Example:
        >>> keys = torch.tensor([1.0, 2.0]).view(1, 2, 1, 1)  # K = 2
        >>> repeat_heads(keys, 4).flatten()
        tensor([1., 1., 2., 2.])
    """
    return x if x.shape[-3] == n_heads else x.repeat_interleave(n_heads // x.shape[-3], dim=-3)


@cache_result
def _flex(compiled: bool):  # type: ignore[no-untyped-def]
    # FlexAttention is fast only if compiled. Uncompiled, it serves the tests on a CPU.
    return torch.compile(flex_attention, dynamic=True) if compiled else flex_attention


def dense_mask(
    mask: Tensor | BlockMask | None, causal: bool, window: int | None, q: Tensor, k: Tensor
) -> Tensor | None:
    """Combine mask, causal mask and window to a bool tensor; None allows all pairs.

    Args:
        mask: Bool tensor broadcastable to (B, H, Tq, Tk), a BlockMask, or None.
        causal: Hide the keys after a query.
        window: Hide keys that are this many columns or more away from the query; None means no
            window.
        q: Queries (B, H, Tq, Dh), of which shape and device are used.
        k: Keys (B, K, Tk, Dh), of which the shape is used.

    Returns:
        Bool tensor broadcastable to (B, H, Tq, Tk), True = may attend, or None.

    Example:
        >>> x = torch.randn(1, 1, 4, 8)
        >>> dense_mask(None, True, 2, x, x)[0, 0].int()
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [0, 1, 1, 0],
                [0, 0, 1, 1]], dtype=torch.int32)
    """
    if isinstance(mask, BlockMask):
        rows, heads, q_len, k_len = mask.shape
        mask = create_mask(mask.mask_mod, rows, heads, q_len, k_len, str(q.device))
    size = q.shape[2], k.shape[2], q.device
    allowed: Tensor | None = mask
    near = Mask(window=window).lower(*size).mask
    for added in (near, causal_mask(*size) if causal else None):
        if added is not None:
            allowed = added if allowed is None else allowed & added
    return allowed


class Attention(nn.Module):
    """Multi-head self-attention, or cross-attention if `forward` gets a memory (encoder output).

    Source: Vaswani et al. 2017, section 3.2.2.

    Args:
        d_model: Model width D.
        n_heads: Number of heads H.
        n_kv_heads: Number of heads K of keys and values, a divisor of H; None means H.
        d_head: Width Dh of a query and key per head; None means d_model / n_heads.
        d_value: Width Dv of a value per head; None means Dh.
        bias: Learn a bias in each projection.
        qkv_bias: Learn a bias in the projections to queries, keys and values; None means `bias`.
        qk_norm: Normalize queries and keys, before the rotation: none, head (each head by
            itself) or all (all heads together).
        norm: Function that builds a norm of queries or keys from its width.
        scale: Factor on the scores; None means 1 / sqrt(Dh).
        dropout: Dropout probability of the attention weights.

    Attributes:
        normalize: Function from attention scores to attention weights; set it on the class or on an
            instance.

    Raises:
        InputError: `d_model` is not divisible by `n_heads`, and `d_head` is not given.

    Example:
        >>> attn = Attention(16, 4)
        >>> attn(torch.randn(2, 5, 16)).shape
        torch.Size([2, 5, 16])
    """

    normalize: Callable[[Tensor], Tensor] = staticmethod(softmax)

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        d_head: int | None = None,
        d_value: int | None = None,
        bias: bool = True,
        qkv_bias: bool | None = None,
        qk_norm: QKNorm = "none",
        norm: Callable[[int], nn.Module] = nn.RMSNorm,
        scale: float | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        d_head = head_width(d_model, n_heads, d_head)
        d_value = d_value or d_head
        self.n_heads = n_heads
        self.n_kv_heads = n_kv_heads or n_heads
        self.scale = scale
        self.dropout = dropout
        qkv_bias = bias if qkv_bias is None else qkv_bias
        self.q = Linear(d_model, n_heads * d_head, bias=qkv_bias)
        self.k = Linear(d_model, self.n_kv_heads * d_head, bias=qkv_bias)
        self.v = Linear(d_model, self.n_kv_heads * d_value, bias=qkv_bias)
        self.out = Linear(n_heads * d_value, d_model, bias=bias)
        self.norm_by_head = qk_norm == "head"
        self.q_norm: nn.Module = nn.Identity()
        self.k_norm: nn.Module = nn.Identity()
        if qk_norm != "none":
            self.q_norm = norm(d_head if self.norm_by_head else n_heads * d_head)
            self.k_norm = norm(d_head if self.norm_by_head else self.n_kv_heads * d_head)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: LoweredMask = LoweredMask(),
        bias: Tensor | None = None,
        cache: LayerCache | None = None,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """Attend from x to itself (self-attention) or to a memory (cross-attention).

        The batch size S of the memory may be smaller than B. Each source, which is one element of
        the memory, then serves B / S consecutive elements of x, such as the beams of the source.
        The batch size of the mask is then B or S.

        Args:
            x: States (B, Tq, D) that the queries are computed from.
            memory: States (B or S, Tk, D) that keys and values are computed from; None means x.
            mask: Mask as returned by `lower_mask`.
            bias: Tensor added to the scores, broadcastable to (B, H, Tq, Tk).
            cache: Cache of this layer, changed in place. Without a memory, the keys and values of x
                are appended to those of earlier tokens. With a memory, the cache keeps the keys and
                values of the memory, which are computed at the first call only.
            rotation: Rotary positions of x, by which queries and keys are rotated, for
                self-attention only; None means no rotary positions. The cache holds rotated keys.

        Returns:
            (B, Tq, D).
        """
        x = cast_once(x)
        memory = memory if memory is None else cast_once(memory)
        q = self._queries(x, rotation)  # (B, H, Tq, Dh)
        k, v = self._keys_values(x, memory, cache, rotation)
        shared = k.shape[0] < q.shape[0]  # len() would fix the batch size of an exported graph
        allowed = dense_mask(mask.mask, False, None, q, k) if shared else mask.mask
        if shared:
            assert mask.window is None, "a window is for self-attention"
            if allowed is not None:
                allowed = allowed.repeat_interleave(len(q) // len(allowed), 0)  # B rows
                allowed = fold_beams_into_queries(allowed.expand(-1, -1, q.shape[2], -1), len(k))
            q = fold_beams_into_queries(q, len(k))  # (S, H, B/S Tq, Dh)
        y = attend(
            q,
            k,
            v,
            mask=allowed,
            causal=mask.causal,
            window=mask.window,
            bias=bias,
            scale=self.scale,
            dropout_p=self.dropout if self.training else 0.0,
            normalize=self.normalize,
        )  # (B, H, Tq, Dv), or (S, H, B/S Tq, Dv) with shared memory
        if shared:
            y = y.unflatten(2, (-1, x.shape[1])).transpose(1, 2).flatten(0, 1)  # (B, H, Tq, Dv)
        return self.out(y.transpose(1, 2).flatten(2))  # (B, Tq, D)

    def weights(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        mask: LoweredMask = LoweredMask(),
        bias: Tensor | None = None,
        rotation: Rotation | None = None,
    ) -> Tensor:
        """Compute the attention weights (B, H, Tq, Tk) that `forward` applies to the values.

        The arguments have the same meaning as in `forward`. Dropout is not applied.
        """
        k, _ = self._keys_values(x, memory, None, rotation)
        q = self._queries(x, rotation)
        allowed = dense_mask(mask.mask, mask.causal, mask.window, q, k)
        return attention_weights(
            q, k, mask=allowed, bias=bias, scale=self.scale, normalize=self.normalize
        )

    def _queries(self, x: Tensor, rotation: Rotation | None) -> Tensor:
        q = self._normalized_heads(self.q(x), self.n_heads, self.q_norm)
        return q if rotation is None else rotate(q, rotation)

    def _keys_values(
        self, x: Tensor, memory: Tensor | None, cache: LayerCache | None, rotation: Rotation | None
    ) -> tuple[Tensor, Tensor]:
        if memory is not None and cache is not None and cache.memory is not None:
            return cache.memory
        source = x if memory is None else memory
        k = self._normalized_heads(self.k(source), self.n_kv_heads, self.k_norm)
        v = split_heads(self.v(source), self.n_kv_heads)
        if rotation is not None:
            k = rotate(k, rotation)
        if cache is None:
            return k, v
        if memory is None:
            return cache.extend(k, v)
        cache.memory = k.contiguous(), v.contiguous()  # each step reads them head by head
        return cache.memory

    def _normalized_heads(self, x: Tensor, n_heads: int, norm: nn.Module) -> Tensor:
        heads = split_heads(x if self.norm_by_head else norm(x), n_heads)
        return (norm(heads) if self.norm_by_head else heads).to(
            x.dtype
        )  # autocast computes norms in fp32


def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """Split projected states (B, T, H * Dh) into heads (B, H, T, Dh).

    Example:
        >>> split_heads(torch.randn(2, 5, 16), n_heads=4).shape
        torch.Size([2, 4, 5, 4])
    """
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


def fold_beams_into_queries(x: Tensor, sources: int) -> Tensor:
    """Concatenate the queries of all beams of a source, which attend to the same keys.

    Args:
        x: Queries (B, H, Tq, Dh), or a mask (B, H, Tq, Tk).
        sources: Number S of sources, each with B / S consecutive elements of the batch.

    Returns:
        (S, H, B / S * Tq, Dh) or (S, H, B / S * Tq, Tk).

    Example:
        >>> q = torch.randn(6, 4, 1, 8)  # three beams for each of two sources
        >>> fold_beams_into_queries(q, 2).shape
        torch.Size([2, 4, 3, 8])
    """
    return x.unflatten(0, (sources, -1)).transpose(1, 2).flatten(2, 3)
