"""CUDA kernels for attention: FlexAttention, and the choice of torch's kernel for a dense mask.

Shapes: B batch, H heads, Tq queries, Tk keys, Dh head width, Dv value width.
"""

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention

# Largest number of queries for which torch's memory-efficient kernel takes the place of cuDNN. On
# an NVIDIA H200, the forward and backward pass of 960 sentences of 26 tokens with 8 heads of width
# 64 take 0.35 ms in place of 0.57 ms. With 16 sequences of 1,024 tokens and 12 heads, cuDNN takes
# 1.02 ms, including the replacement of hidden queries, and the memory-efficient kernel 2.02 ms.
MAX_SHORT_QUERIES = 64


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
    if q.shape[2] <= MAX_SHORT_QUERIES:
        with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
            return F.scaled_dot_product_attention(q, k, v, mask, dropout_p, scale=scale)
    if allowed is None:
        return F.scaled_dot_product_attention(q, k, v, mask, dropout_p, scale=scale)
    # cuDNN does not return 0 for a query that may attend to no key. Such a query attends to all
    # keys instead, so that its softmax is defined, and its result is replaced.
    is_hidden = ~allowed.any(-1, keepdim=True)
    mask = mask | is_hidden if mask.dtype == torch.bool else mask.masked_fill(is_hidden, 0.0)
    y = F.scaled_dot_product_attention(q, k, v, mask, dropout_p, scale=scale)
    return y.masked_fill(is_hidden, 0.0)


def attend_by_blocks(
    q: Tensor, k: Tensor, v: Tensor, mask: Any, bias: Any, causal: bool, *settings: Any
) -> Tensor:
    """Compute attention with a BlockMask on FlexAttention."""
    scale, dropout_p, window = settings
    unsupported = bias is not None or dropout_p or causal or window is not None
    assert not unsupported, "a BlockMask has causality and window; bias and dropout need dense=True"
    is_grouped = k.shape[1] < q.shape[1]
    return _flex(q.is_cuda)(q, k, v, block_mask=mask, scale=scale, enable_gqa=is_grouped)


@lru_cache
def _flex(compiled: bool):  # type: ignore[no-untyped-def]
    # FlexAttention is fast only if compiled. Uncompiled, it serves the tests on a CPU.
    return torch.compile(flex_attention, dynamic=True) if compiled else flex_attention
