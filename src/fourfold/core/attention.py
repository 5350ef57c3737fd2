"""Scaled dot-product and multi-head attention (Vaswani et al. 2017, section 3.2).

`attend` computes the attention of all models, on a kernel that it picks from the table `BACKENDS`.
`Attention` projects its input to queries, keys and values, and calls `attend`.

Shapes: B batch, S source sequences (S = B; in beam search, S = B / number of beams), H heads, K
heads of keys and values (H, or a divisor of H), Tq queries, Tk keys, D model width, Dh head width,
Dv value width.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourfold.core.config import QKNorm, head_width
from fourfold.core.edits import Edits
from fourfold.core.feed_forward import Linear, cast_once
from fourfold.core.kv_cache import LayerCache
from fourfold.core.masks import LoweredMask, Mask, causal_mask
from fourfold.core.rotary import Rotation, rotate
from fourfold.core.validation import check_choice
from fourfold.kernels.cpu_attention import attend_by_products, window_is_faster
from fourfold.kernels.cuda_attention import attend_by_blocks, attend_masked, refuse_dropout

# Largest number of queries for which the H / K heads that share keys are passed to the kernel as
# H / K times as many queries of one head, so that it reads each key once. On one core of an Intel
# Xeon (model 207), a query with 8 heads, 2 heads of keys and 512 keys then takes 29 us in place of
# 53 us in fp32, and 40 us in place of 431 us in bf16.
MAX_FOLDED_QUERIES = 8
DENSE = (Tensor, type(None))  # other masks are a BlockMask, whose import would load sympy
_backend: ContextVar[str] = ContextVar("attention_backend", default="auto")


@contextmanager
def attention_backend(name: str) -> Iterator[None]:
    """Run all attention in this context on one backend.

    auto is the fastest kernel for the device and the arguments, naive matrix products and softmax,
    sdpa `F.scaled_dot_product_attention`, and flex FlexAttention with a BlockMask in place of a
    dense mask (sdpa if no mask is needed, or with a bias). FlexAttention has no dropout of the
    weights: with dropout, flex raises InputError, and auto uses a dense mask.

    Example:
        >>> q, k, v = torch.randn(3, 1, 2, 5, 8)
        >>> with attention_backend("naive"):
        ...     by_products = attend(q, k, v)
        >>> torch.allclose(attend(q, k, v), by_products, atol=1e-6)
        True
    """
    check_choice("attention_backend", name, tuple(BACKENDS))
    token = _backend.set(name)
    try:
        yield
    finally:
        _backend.reset(token)


def lower_mask(
    mask: Mask, q_len: int, k_len: int, like: Tensor, *, dense: bool = False
) -> LoweredMask:
    """Convert a mask for `q_len` queries and `k_len` keys to the form that the backend takes.

    The result is on the device of `like`. With `dense`, it is never a BlockMask.

    Example:
        >>> lower_mask(Mask(causal=True), 3, 3, torch.empty(0))  # the kernel applies it itself
        LoweredMask(mask=None, causal=True, window=None)
    """
    backend = _backend.get()
    # On a CPU, `attend_by_products` applies a short window itself: it reads the keys near a query.
    takes_window = mask.window is not None and backend == "auto" and like.device.type == "cpu"
    if (
        takes_window
        and not mask.n_global
        and window_is_faster(mask.window, mask.keys, q_len, k_len)
    ):
        rest = replace(mask, causal=False, window=None).lower(q_len, k_len, like.device)
        return LoweredMask(rest.mask, mask.causal and q_len > 1, mask.window)
    # FlexAttention skips blocks in which all pairs are hidden. The search for the other blocks
    # takes longer than attention with a single query.
    sparse = mask.documents is not None or mask.window is not None
    flex = backend == "flex" or (backend == "auto" and like.is_cuda and sparse and q_len > 1)
    return mask.lower(q_len, k_len, like.device, flex=flex and not dense)


def softmax(scores: Tensor) -> Tensor:
    """Apply softmax over the keys to scores (B, H, Tq, Tk); a score of -inf gives a weight of 0.

    `Attention.normalize` is this function by default. An assignment of another function, such as
    ``Attention.normalize = staticmethod(entmax15)``, changes training, evaluation, decoding and
    attention maps alike.

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
    """Compute the attention weights (B, H, Tq, Tk), normalize(scale q k^T + bias).

    The arguments are those of `attend`; `mask` must not be a BlockMask. The weights are in fp32, or
    in fp64 for a q in fp64, and 0 for a query that may attend to no key.

    Example:
        >>> q, k = torch.randn(2, 1, 1, 3, 8)
        >>> weights = attention_weights(q, k, mask=causal_mask(3, 3, q.device))
        >>> weights[0, 0, 0]  # the first query may attend to the first key only
        tensor([1., 0., 0.])
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
    mask: Any = None,
    bias: Tensor | None = None,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
    normalize: Callable[[Tensor], Tensor] = softmax,
) -> Tensor:
    """Compute attention on the first kernel of the backend that suits the arguments.

    Args:
        q: Queries (B, H, Tq, Dh).
        k: Keys (B, K, Tk, Dh). Head i serves the heads from i H/K to (i + 1) H/K - 1 of the
            queries.
        v: Values (B, K, Tk, Dv).
        mask: Bool tensor, True = may attend, broadcastable to (B, H, Tq, Tk), or a BlockMask. A
            BlockMask contains the causal mask, and supports neither bias nor dropout.
        bias: Tensor added to the scores, broadcastable to (B, H, Tq, Tk).
        causal: Apply a causal mask, in which the last query may attend to every key.
        window: Hide keys that are this many columns or more away from the query. The last query has
            the column of the last key.
        scale: Factor on the scores; None means 1 / sqrt(Dh).
        dropout_p: Dropout probability of the weights.
        normalize: Function from scores to weights; fused kernels support only `softmax`.

    Returns:
        (B, H, Tq, Dv); 0 for a query that may attend to no key.

    Example:
        >>> q, k = torch.randn(2, 1, 2, 5, 8)
        >>> v = torch.ones(1, 2, 5, 8)  # a weighted mean of ones is one
        >>> torch.allclose(attend(q, k, v, causal=True), v)
        True
    """
    backend = _backend.get()
    # No fused kernel supports the transforms of torch.func, such as vmap and repeated grad.
    transformed = torch._C._are_functorch_transforms_active()
    if backend == "naive" or normalize is not softmax or transformed:
        allowed = dense_mask(mask, causal, window, q, k)
        weights = attention_weights(q, k, mask=allowed, bias=bias, scale=scale, normalize=normalize)
        return F.dropout(weights.to(v.dtype), dropout_p) @ repeat_heads(v, q.shape[1])
    if window is None:  # a kernel applies a causal mask to a square of scores, without other masks
        needs_mask = causal and (mask is not None or bias is not None or q.shape[2] != k.shape[2])
    else:  # only the eager kernel for CPUs applies a window
        needs_mask = backend != "auto" or q.device.type != "cpu" or torch.compiler.is_compiling()
    if needs_mask and isinstance(mask, DENSE):
        mask, causal, window = dense_mask(mask, causal, window, q, k), False, None
    rows, n_heads, q_len = q.shape[:3]
    if k.shape[1] < n_heads and bias is None and window is None and not causal:
        q, mask = _fold_groups_into_queries(q, k.shape[1], mask)
    for suits, kernel in BACKENDS[backend]:
        if suits(q, k.shape[2], dropout_p, mask, window):
            y = kernel(q, k, v, mask, bias, causal, scale, dropout_p, window)
            break
    return y if y.shape[1] == n_heads else y.reshape(rows, n_heads, q_len, v.shape[3])


def _fold_groups_into_queries(q: Tensor, n_kv_heads: int, mask: Any) -> tuple[Tensor, Any]:
    """Pass the heads that share keys as more queries of one head, if there are few queries."""
    if torch.compiler.is_exporting() or q.shape[2] > MAX_FOLDED_QUERIES:
        return q, mask  # an exported graph gets any number of queries
    if not isinstance(mask, DENSE) or (mask is not None and mask.shape[-3:-2] not in ((), (1,))):
        return q, mask  # each head has a mask of its own
    if mask is not None and mask.shape[-2] > 1:
        mask = torch.cat([mask] * (q.shape[1] // n_kv_heads), dim=-2)
    size = len(q), n_kv_heads, q.shape[1] // n_kv_heads * q.shape[2], q.shape[3]
    return q.reshape(size), mask  # (B, K, H/K Tq, Dh)


def products_are_faster(
    q: Tensor, k_len: int, dropout_p: float, mask: Any = None, window: int | None = None
) -> bool:
    """Return True if `attend_by_products` must apply a window, or is faster than torch's kernel.

    Measured on two cores of a CPU: in training with bf16 or dropout, it is 5 times as fast at 16
    tokens and twice at 512; in inference in bf16 with many scores, 1.1 to 2 times; in decoding of
    several sequences with one query each, or with the beams of a source, 2 to 7 times.

    Example:
        >>> q = torch.empty(8, 4, 1, 64)  # eight sequences with one query each
        >>> products_are_faster(q, 100, 0.0), products_are_faster(q[:1], 100, 0.0)
        (True, False)
    """
    if window is not None:
        return True
    if q.device.type != "cpu" or torch.compiler.is_exporting():
        return False  # an exported graph has operators of torch only
    is_bf16 = q.dtype == torch.bfloat16
    if torch.is_grad_enabled() and q.requires_grad:
        return is_bf16 or dropout_p > 0.0
    if q.shape[2] > 8:
        return is_bf16 and math.prod(q.shape[:3]) * k_len >= 2**15
    return q.shape[0] > 1 and q.shape[2] <= (8 if is_bf16 and k_len <= 32 else 1)


def _attend_fused(
    q: Tensor, k: Tensor, v: Tensor, mask: Any, bias: Any, causal: bool, *settings: Any
) -> Tensor:
    """Compute attention with a dense mask, or a causal mask, on the fused kernels of torch."""
    scale, dropout_p, _ = settings
    allowed = mask
    if bias is not None:
        bias = bias.to(q.dtype)
        mask = bias if mask is None else bias.masked_fill(~mask, float("-inf"))
    if q.is_cuda and mask is not None and not torch.compiler.is_exporting():
        return attend_masked(q, k, v, mask, allowed, dropout_p, scale)
    options = {"is_causal": causal, "scale": scale, "enable_gqa": k.shape[1] < q.shape[1]}
    return F.scaled_dot_product_attention(q, k, v, mask, dropout_p, **options)


# Kernels of each backend, in the order in which `attend` asks them. A condition gets q, the number
# of keys, dropout_p, mask and window; a kernel gets q, k, v, mask, bias, causal, scale, dropout_p
# and window. naive is the formula of Vaswani et al. 2017 and needs no kernel.
_BLOCKS = (lambda q, k_len, dropout_p, mask, window: not isinstance(mask, DENSE), attend_by_blocks)
_PRODUCTS = (products_are_faster, attend_by_products)
_FUSED = (lambda *arguments: True, _attend_fused)
_DROPOUT = (lambda q, k_len, dropout_p, *_: dropout_p > 0.0, refuse_dropout)
BACKENDS: dict[str, tuple[tuple[Callable[..., bool], Callable[..., Tensor]], ...]] = {
    "auto": (_BLOCKS, _PRODUCTS, _FUSED),
    "naive": (),
    "sdpa": (_BLOCKS, _FUSED),
    "flex": (_DROPOUT, _BLOCKS, _FUSED),
}


def repeat_heads(x: Tensor, n_heads: int) -> Tensor:
    """Repeat each head of keys or values x (B, K, Tk, Dh), for H = `n_heads` heads of queries.

    Example:
        >>> keys = torch.tensor([1.0, 2.0]).view(1, 2, 1, 1)  # K = 2
        >>> repeat_heads(keys, 4).flatten()
        tensor([1., 1., 2., 2.])
    """
    return x if x.shape[-3] == n_heads else x.repeat_interleave(n_heads // x.shape[-3], dim=-3)


def dense_mask(mask: Any, causal: bool, window: int | None, q: Tensor, k: Tensor) -> Tensor | None:
    """Combine mask, causal mask and window of `attend` to one bool tensor; None allows all pairs.

    Example:
        >>> x = torch.randn(1, 1, 4, 8)
        >>> dense_mask(None, True, 2, x, x)[0, 0].int()
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [0, 1, 1, 0],
                [0, 0, 1, 1]], dtype=torch.int32)
    """
    if not isinstance(mask, DENSE):
        from torch.nn.attention.flex_attention import create_mask

        rows, heads, q_len, k_len = mask.shape
        mask = create_mask(mask.mask_mod, rows, heads, q_len, k_len, str(q.device))
    size = q.shape[2], k.shape[2], q.device
    allowed: Tensor | None = mask
    near = None if window is None else Mask(window=window).lower(*size).mask
    for added in (near, causal_mask(*size) if causal else None):
        if added is not None:
            allowed = added if allowed is None else allowed & added
    return allowed


class Attention(nn.Module):
    """Multi-head self-attention, or cross-attention if `forward` gets a memory (encoder output).

    The arguments are fields of `TransformerConfig`: `scale` is `attn_scale`, `dropout` is
    `attn_dropout`, and `norm` builds a norm of queries or keys from its width. `normalize` is the
    function from scores to weights, see `softmax`; set it on the class or on an instance.

    Example:
        >>> attn = Attention(16, 4, n_kv_heads=2)
        >>> [layer.out_features for layer in (attn.q, attn.k, attn.v, attn.out)]
        [16, 8, 8, 16]
    """

    normalize: Callable[[Tensor], Tensor] = staticmethod(softmax)
    edits: Edits | None = None

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
        out_bias: bool | None = None,
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
        self.out = Linear(n_heads * d_value, d_model, bias=bias if out_bias is None else out_bias)
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
        """Attend from the states x (B, Tq, D) to themselves, or to a memory (B or S, Tk, D).

        Each of S sources serves B / S consecutive elements of x, such as the beams of the source.
        The batch size of the mask is then B or S.

        `mask` is a result of `lower_mask`, and `bias` a tensor (B, H, Tq, Tk) that is added to the
        scores. The keys and values of x are appended to those of earlier tokens in `cache`; those
        of a memory are computed at the first call only. `rotation` rotates queries and keys of
        self-attention; the cache holds rotated keys.
        """
        x = cast_once(x)
        q = self._heads(self.q, x, self.n_heads, self.q_norm, rotation)  # (B, H, Tq, Dh)
        if memory is not None and cache is not None and cache.memory is not None:
            k, v = cache.memory
        else:
            source = x if memory is None else cast_once(memory)
            k = self._heads(self.k, source, self.n_kv_heads, self.k_norm, rotation)
            v = split_heads(self.v(source), self.n_kv_heads)
            if cache is not None and memory is None:
                k, v = cache.extend(k, v)
            elif cache is not None:  # each step reads these keys and values head by head
                cache.memory = k, v = k.contiguous(), v.contiguous()
        if self.edits is not None:  # of all tokens; the cache holds them without edits
            q, k, v = (self.edits.apply(slot, y) for slot, y in (("q", q), ("k", k), ("v", v)))
        allowed = mask.mask
        if shared := k.shape[0] < q.shape[0]:  # len() would fix the batch size of an exported graph
            assert mask.window is None, "a window is for self-attention"
            allowed = dense_mask(allowed, False, None, q, k)
            if allowed is not None:
                allowed = allowed.repeat_interleave(len(q) // len(allowed), 0)  # B rows
                allowed = fold_beams_into_queries(allowed.expand(-1, -1, q.shape[2], -1), len(k))
            q = fold_beams_into_queries(q, len(k))  # (S, H, B/S Tq, Dh)
        y = attend(
            *(q, k, v),
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
        if self.edits is not None:
            y = self.edits.apply("head", y)
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

        The arguments are those of `forward`. Dropout is not applied.
        """
        q = self._heads(self.q, x, self.n_heads, self.q_norm, rotation)
        source = x if memory is None else memory
        k = self._heads(self.k, source, self.n_kv_heads, self.k_norm, rotation)
        if self.edits is not None:
            q, k = self.edits.apply("q", q), self.edits.apply("k", k)
        allowed = dense_mask(mask.mask, mask.causal, mask.window, q, k)
        return attention_weights(
            q, k, mask=allowed, bias=bias, scale=self.scale, normalize=self.normalize
        )

    def _heads(
        self, layer: nn.Module, x: Tensor, n_heads: int, norm: nn.Module, turns: Rotation | None
    ) -> Tensor:
        """Project x to queries or keys, normalize and rotate them."""
        y = layer(x)
        dtype = y.dtype  # autocast computes norms in fp32
        y = split_heads(y if self.norm_by_head else norm(y), n_heads)
        y = (norm(y) if self.norm_by_head else y).to(dtype)
        return y if turns is None else rotate(y, turns)


def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """Split projected states (B, T, H * Dh) into heads (B, H, T, Dh).

    Example:
        >>> split_heads(torch.arange(4).view(1, 1, 4), n_heads=2).tolist()
        [[[[0, 1]], [[2, 3]]]]
    """
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


def fold_beams_into_queries(x: Tensor, sources: int) -> Tensor:
    """Concatenate the queries of all beams of each of S sources, which attend to the same keys.

    The result for queries x (B, H, Tq, Dh) is (S, H, B / S * Tq, Dh), and correspondingly for a
    mask (B, H, Tq, Tk).

    Example:
        >>> q = torch.arange(4).view(4, 1, 1, 1)  # two beams for each of two sources
        >>> fold_beams_into_queries(q, 2).flatten(1).tolist()
        [[0, 1], [2, 3]]
    """
    return x.unflatten(0, (sources, -1)).transpose(1, 2).flatten(2, 3)
