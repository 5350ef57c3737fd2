"""Attention masks: causal, prefix, padding, packed documents, local windows; token positions.

A `Mask` describes the pattern. `Stack` converts a `Mask` once per forward pass to a `LoweredMask`,
the form that an attention kernel takes. Masks are bool, True = may attend. A padding mask `keys` is
bool, too, True = real token; None means that all tokens are real. `documents` is the index of the
packed document of each token; None means one document. The queries are always the last Tq of the Tk
positions (aligned at the bottom right), as in decoding with a cache.
Shapes: B batch, H heads, Tq queries, Tk keys, t new tokens.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.core.kv_cache import KVCache
from fourfold.errors import InputError
from fourfold.kernels.cuda_attention import block_mask


class LoweredMask(NamedTuple):
    """Mask in the form that `attend` takes.

    The kernel applies `causal` and `window` itself, in addition to `mask`. If it applies a causal
    mask without a window, `mask` is None and Tq == Tk.

    Example:
        >>> LoweredMask(causal=True)
        LoweredMask(mask=None, causal=True, window=None)
    """

    mask: Any = None  # a bool tensor broadcastable to (B, H, Tq, Tk), or a BlockMask
    causal: bool = False
    window: int | None = None  # distances are differences of columns


def causal_mask(q_len: int, k_len: int, device: torch.device) -> Tensor:
    """Return a bool causal mask (Tq, Tk), in which the last query may attend to every key.

    Example:
        >>> causal_mask(2, 3, torch.device("cpu")).int().tolist()
        [[1, 1, 0], [1, 1, 1]]
    """
    return torch.ones(q_len, k_len, dtype=torch.bool, device=device).tril(k_len - q_len)


@dataclass(frozen=True)
class Mask:
    """Attention pattern, in which a query may attend to a key if all given conditions allow it.

    Args:
        causal: Hide the keys after a query.
        keys: Padding mask (B, Tk); InputError unless it is bool. Padding is hidden.
        documents: (B, Tk) index of the document of each key. A query may attend only to the keys of
            its own document.
        query_documents: (B, Tq) index of the document of each query; None means the last Tq columns
            of `documents`.
        window: Hide keys that are this many positions or more away from the query. Positions count
            real tokens only, so padding does not change the result.
        n_global: The window neither hides the first `n_global` keys nor applies to the first
            `n_global` queries (global attention of Beltagy et al. 2020). There must be no padding
            on the left.
        prefix: (B, Tk) bool, True = the causal mask does not hide the key (prefix LM, Raffel et al.
            2019, section 3.2.1), so that it is bidirectional where all are True. InputError without
            `causal`, or with a window.

    Example:
        >>> pattern = Mask(causal=True, window=2)
        >>> pattern.lower(4, 4, torch.device("cpu")).mask[0, 0].int()
        tensor([[1, 0, 0, 0],
                [1, 1, 0, 0],
                [0, 1, 1, 0],
                [0, 0, 1, 1]], dtype=torch.int32)
    """

    causal: bool = False
    keys: Tensor | None = None
    documents: Tensor | None = None
    query_documents: Tensor | None = None
    window: int | None = None
    n_global: int = 0
    prefix: Tensor | None = None

    def __post_init__(self) -> None:
        for name, given in (("mask", self.keys), ("prefix", self.prefix)):
            if given is not None and given.dtype != torch.bool:
                raise InputError(f"must be of dtype bool, got {given.dtype}", option=name)
        if self.prefix is not None and (not self.causal or self.window is not None):
            raise InputError("needs a causal mask without a window", option="prefix")

    def lower(
        self, q_len: int, k_len: int, device: torch.device, flex: bool = False
    ) -> LoweredMask:
        """Convert the pattern for `q_len` queries and `k_len` keys to the form that kernels take.

        The mask is None if the kernel needs none, or only a causal mask of equally many queries and
        keys. Otherwise it is dense, or a BlockMask if `flex` is True.
        """
        # A single query is at the last position. An exported graph gets any number of queries.
        exporting = torch.compiler.is_exporting()
        causal = self.causal and (exporting or q_len > 1)
        # Local variables, because FlexAttention compiles `allowed` with the tensors that it uses.
        keys, documents, window, n_global = self.keys, self.documents, self.window, self.n_global
        if window is not None and not exporting and max(q_len, k_len) <= window:
            window = None
        prefix = self.prefix if causal else None
        plain = all(x is None for x in (keys, documents, window, prefix))
        if plain and (not causal or q_len == k_len):
            return LoweredMask(None, causal)
        offset = k_len - q_len
        positions = None if keys is None else keys.long().cumsum(dim=1)
        q_documents = self.query_documents
        if documents is not None and q_documents is None:
            q_documents = documents[:, k_len - q_len :]

        def allowed(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            ok = k <= q + offset if causal else k >= 0  # the latter is True, in the shape of k
            if prefix is not None:
                ok = ok | prefix[b, k]
            if window is not None:
                # Without padding, the columns are the positions. `before` is negative for a query
                # before the first key.
                before, at = (q + offset).clamp(max=0), (q + offset).clamp(min=0)
                columns = at - k if positions is None else positions[b, at] - positions[b, k]
                is_near = (before + columns).abs() < window
                ok = ok & (is_near | ((before == 0) & (at < n_global)) | (k < n_global))
            if keys is not None:
                ok = ok & keys[b, k]
            if documents is not None and q_documents is not None:
                ok = ok & (q_documents[b, q] == documents[b, k])
            return ok

        n_batch = next((x.shape[0] for x in (keys, documents, prefix) if x is not None), None)
        if flex and q_len and k_len and n_batch != 0:
            tensors = keys, documents, self.query_documents, prefix
            sizes = n_batch, None, q_len, k_len, str(device)
            return LoweredMask(block_mask(allowed, (causal, window, n_global), tensors, *sizes))
        # All four dimensions, so that the predicate computes the whole mask by broadcasting.
        b = torch.arange(1 if n_batch is None else n_batch, device=device)[:, None, None, None]
        q = torch.arange(q_len, device=device)[None, None, :, None]
        k = torch.arange(k_len, device=device)[None, None, None, :]
        return LoweredMask(allowed(b, torch.zeros_like(b), q, k))


def count_positions(
    keys: Tensor | None, documents: Tensor | None, q_len: int, k_len: int
) -> Tensor | slice:
    """Compute the positions of the last `q_len` of `k_len` tokens, from 0 in each document.

    Padding is not counted, so a token has the same position in left-padded, right-padded and
    unpadded sequences. The result is a slice of length Tq if there are neither `keys` (B, Tk) nor
    `documents` (B, Tk), else (B, Tq) int64.

    Example:
        >>> count_positions(torch.tensor([[False, True, True, True]]), None, 2, 4)
        tensor([[1, 2]])
    """
    if documents is None:
        if keys is None:
            return slice(k_len - q_len, k_len)
        return (keys.long().cumsum(dim=1) - 1).clamp(min=0)[:, k_len - q_len :]
    real = torch.ones_like(documents) if keys is None else keys.long()  # (B, Tk)
    count = real.cumsum(dim=1)
    starts = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0), value=True)
    earlier = torch.where(starts, count - real, 0).cummax(dim=1).values  # in other documents
    return (count - earlier - 1).clamp(min=0)[:, k_len - q_len :]


def mask_and_positions(
    ids: Tensor, keys: Tensor | None, documents: Tensor | None, cache: KVCache | None, causal: bool
) -> tuple[Mask, Tensor | slice]:
    """Build the self-attention mask of new tokens, and their positions (see `count_positions`).

    `ids`, `keys` and `documents` (B, t) are those of the new tokens; InputError if `keys` has
    another length, or is not bool. A cache is extended in place by their number, padding mask and
    documents (None continues the last document); the layers append keys and values later. The
    queries of the mask are the new tokens, its keys all tokens.

    Example:
        >>> ids = torch.tensor([[0, 5, 7]])  # the first token is padding
        >>> mask_and_positions(ids, ids != 0, None, None, causal=True)[1]
        tensor([[0, 0, 1]])
    """
    k_len = ids.shape[1]
    if keys is not None and keys.shape[-1] != k_len:
        message = f"must have one column per token: got {keys.shape[-1]} columns for {k_len} tokens"
        raise InputError(f"{message} (with a cache, of the new tokens only)", option="mask")
    if cache is not None:
        cache.advance(ids, keys, documents)
        keys, documents, k_len = cache.keys, cache.documents, cache.length
    mask = Mask(causal=causal, keys=keys, documents=documents)
    return mask, count_positions(keys, documents, ids.shape[1], k_len)
