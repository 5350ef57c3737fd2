"""CUDA kernels for attention: FlexAttention, and the choice of torch's kernel for a dense mask.

Shapes: B batch, H heads, K heads of keys and values (H, or a divisor of H), Tq queries, Tk keys, Dh
head width, Dv value width.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from fourfold.errors import InputError

# Largest number of queries for which torch's memory-efficient kernel takes the place of cuDNN. On
# an NVIDIA H200, the forward and backward pass of 960 sentences of 26 tokens with 8 heads of width
# 64 take 0.35 ms in place of 0.57 ms. With 16 sequences of 1,024 tokens and 12 heads, cuDNN takes
# 1.02 ms, including the replacement of hidden queries, and the memory-efficient kernel 2.02 ms.
MAX_SHORT_QUERIES = 64
# Newest block masks, each with the key and the tensors that it was made for.
_BLOCK_MASKS: deque[tuple[Any, Sequence[Tensor | None], Any]] = deque(maxlen=8)


def attend_masked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    allowed: Tensor | None,
    dropout_p: float,
    scale: float | None,
) -> Tensor:
    """Compute attention with a dense mask; 0 for a query that may attend to no key.

    `mask` is bool, True = may attend, or terms that are added to the scores. `allowed` is the bool
    tensor that it contains; None if all pairs are allowed.
    """
    is_short = q.shape[2] <= MAX_SHORT_QUERIES
    short_kernels = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    if is_hiding := not is_short and allowed is not None:
        # cuDNN does not return 0 for a query that may attend to no key. Such a query attends to all
        # keys instead, so that its softmax is defined, and its result is replaced.
        is_hidden = ~allowed.any(-1, keepdim=True)
        mask = mask | is_hidden if mask.dtype == torch.bool else mask.masked_fill(is_hidden, 0.0)
    with sdpa_kernel(short_kernels) if is_short else nullcontext():
        n_shared = q.shape[1] // k.shape[1]
        if n_shared > 1 and not _takes_groups(q, k, v, mask, dropout_p):
            k, v, n_shared = k.repeat_interleave(n_shared, 1), v.repeat_interleave(n_shared, 1), 1
        y = F.scaled_dot_product_attention(
            q, k, v, mask, dropout_p, scale=scale, enable_gqa=n_shared > 1
        )
    return y.masked_fill(is_hidden, 0.0) if is_hiding else y


def _takes_groups(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, dropout_p: float) -> bool:
    """Return True if torch has a fused kernel for a mask and H / K queries that share a head.

    cuDNN has one, and since torch 2.14 the memory-efficient kernel; otherwise torch would store all
    scores. A compiled graph cannot ask.
    """
    if torch.compiler.is_compiling():
        return False
    choice = torch._fused_sdp_choice(q, k, v, mask, dropout_p, enable_gqa=True)
    return bool(choice != SDPBackend.MATH.value)


def block_mask(
    allowed: Callable[..., Tensor], key: Any, tensors: Sequence[Tensor | None], *sizes: Any
) -> Any:
    """Return the BlockMask of a predicate, or the one that was made for the same key and tensors.

    `key` and `tensors` determine the predicate; `sizes` are further arguments of
    `create_block_mask`, the last of which is the device. On CUDA, the search for the blocks is
    compiled, so that it does not store the mask (B, 1, Tq, Tk).
    """
    from torch.nn.attention.flex_attention import create_block_mask

    known = [x for x in tensors if x is not None]
    make = _fast(create_block_mask, "cuda" in sizes[-1])
    # Inference tensors do not count their changes.
    if torch.compiler.is_compiling() or any(x.is_inference() for x in known):
        return make(allowed, *sizes)
    key = key, sizes, [x._version for x in known]
    for earlier, same, found in list(_BLOCK_MASKS):
        if earlier == key and all(a is b for a, b in zip(same, tensors, strict=True)):
            return found
    made = make(allowed, *sizes)
    _BLOCK_MASKS.append((key, tensors, made))
    return made


def attend_by_blocks(
    q: Tensor, k: Tensor, v: Tensor, mask: Any, bias: Any, causal: bool, *settings: Any
) -> Tensor:
    """Compute attention with a BlockMask on FlexAttention."""
    scale, dropout_p, window = settings
    from torch.nn.attention.flex_attention import flex_attention

    unsupported = bias is not None or dropout_p or causal or window is not None
    assert not unsupported, "a BlockMask has causality and window; bias and dropout need dense=True"
    is_grouped = k.shape[1] < q.shape[1]
    flex = _fast(flex_attention, q.is_cuda)
    return flex(q, k, v, block_mask=mask, scale=scale, enable_gqa=is_grouped)


@lru_cache
def _fast(function: Callable[..., Any], compiled: bool) -> Callable[..., Any]:
    # FlexAttention is fast only if compiled. Uncompiled, it serves the tests on a CPU.
    return torch.compile(function, dynamic=True) if compiled else function


def refuse_dropout(*_: Any) -> Tensor:
    """Raise InputError: FlexAttention has no dropout."""
    message = "must not be flex in training with attn_dropout above 0, which FlexAttention lacks"
    raise InputError(message, option="attention_backend")
