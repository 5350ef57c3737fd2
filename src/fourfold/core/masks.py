"""Attention masks: causal, padding, packed documents and local windows; token positions.

A `Mask` describes the pattern. `Stack` converts a `Mask` once per forward pass to a `LoweredMask`,
the form that an attention kernel takes. Masks are bool, True = may attend. The queries are always
the last Tq of the Tk positions (aligned at the bottom right), as in decoding with a cache.
Shapes: B batch, H heads, Tq queries, Tk keys.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

from fourfold.core.kv_cache import KVCache
from fourfold.errors import InputError


class LoweredMask(NamedTuple):
    """Mask in the form that `attend` takes.

    Attributes:
        mask: None, a bool tensor broadcastable to (B, H, Tq, Tk), or a FlexAttention BlockMask.
        causal: The kernel has to apply a causal mask without being given one; Tq == Tk.
    """

    mask: Any = None
    causal: bool = False


def causal_mask(q_len: int, k_len: int, device: torch.device) -> Tensor:
    """Return a causal mask (Tq, Tk), in which the last query may attend to every key.

    Example:
        >>> causal_mask(2, 3, torch.device("cpu")).int().tolist()
        [[1, 1, 0], [1, 1, 1]]
    """
    ones = torch.ones(q_len, k_len, dtype=torch.bool, device=device)
    return ones.tril(k_len - q_len)


@dataclass(frozen=True)
class Mask:
    """Attention pattern, in which a query may attend to a key if all given conditions allow it.

    Args:
        causal: Hide later positions.
        keys: (B, Tk) bool, True = real token, False = padding, which is hidden.
        documents: (B, Tk) index of the packed document of each key; other documents are hidden.
        query_documents: (B, Tq) index of the document of each query; None means the last Tq of
            `documents`.
        window: Hide keys that are this many positions away or more.

    Raises:
        InputError: `keys` is not bool.
    """

    causal: bool = False
    keys: Tensor | None = None
    documents: Tensor | None = None
    query_documents: Tensor | None = None
    window: int | None = None

    def __post_init__(self) -> None:
        if self.keys is not None and self.keys.dtype != torch.bool:
            raise InputError(
                f"must be of dtype bool, True = real token, got {self.keys.dtype}", option="mask"
            )

    def lower(
        self, q_len: int, k_len: int, device: torch.device, flex: bool = False
    ) -> LoweredMask:
        """Convert the pattern to no mask, a causal flag, a dense bool mask or a BlockMask.

        Args:
            q_len: Tq.
            k_len: Tk.
            device: Device of the result.
            flex: Return a BlockMask in place of a dense mask.
        """
        causal = self.causal and q_len > 1  # a single query is at the last position
        plain = self.keys is None and self.documents is None and self.window is None
        if plain and (not causal or q_len == k_len):
            return LoweredMask(None, causal)
        if flex:
            return LoweredMask(self._block_mask(q_len, k_len, device))
        mask = torch.ones(1, 1, 1, k_len, dtype=torch.bool, device=device)
        if causal:
            mask = mask & causal_mask(q_len, k_len, device)
        if self.window is not None:
            q = torch.arange(k_len - q_len, k_len, device=device)[:, None]
            k = torch.arange(k_len, device=device)
            mask = mask & ((q - k).abs() < self.window)
        if self.keys is not None:
            mask = mask & self.keys[:, None, None, :]
        if self.documents is not None:
            same = self._query_documents(q_len)[:, :, None] == self.documents[:, None, :]
            mask = mask & same[:, None]
        return LoweredMask(mask)

    def _query_documents(self, q_len: int) -> Tensor:
        if self.query_documents is not None:
            return self.query_documents
        assert self.documents is not None
        return self.documents[:, -q_len:]

    def _block_mask(self, q_len: int, k_len: int, device: torch.device) -> Any:
        """Return the sparse form of FlexAttention, which skips blocks of hidden pairs."""
        offset = k_len - q_len
        keys = self.keys
        documents = self.documents
        window = self.window
        q_documents = None if documents is None else self._query_documents(q_len)

        def allowed(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            ok = q >= 0  # True, in the shape of q
            if self.causal:
                ok = ok & (k <= q + offset)
            if window is not None:
                ok = ok & ((q + offset - k).abs() < window)
            if keys is not None:
                ok = ok & keys[b, k]
            if documents is not None and q_documents is not None:
                ok = ok & (q_documents[b, q] == documents[b, k])
            return ok

        by_row = keys if keys is not None else documents
        n_batch = None if by_row is None else by_row.shape[0]
        return create_block_mask(allowed, n_batch, None, q_len, k_len, device=str(device))


def count_positions(
    keys: Tensor | None, documents: Tensor | None, q_len: int, k_len: int
) -> Tensor | slice:
    """Compute the positions of the last `q_len` tokens, without padding and within documents.

    A token has the same position in left-padded, right-padded and unpadded rows.

    Args:
        keys: (B, Tk) bool, True = real token, or None.
        documents: (B, Tk) index of the packed document of each token, or None.
        q_len: Tq.
        k_len: Tk.

    Returns:
        A slice of length Tq if there are neither `keys` nor `documents`, else (B, Tq) int64.

    Example:
        >>> count_positions(torch.tensor([[False, True, True, True]]), None, 2, 4)
        tensor([[1, 2]])
    """
    if documents is None:
        if keys is None:
            return slice(k_len - q_len, k_len)
        documents = torch.zeros_like(keys, dtype=torch.long)
    real = torch.ones_like(documents) if keys is None else keys.long()  # (B, Tk)
    count = real.cumsum(dim=1)
    starts = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0), value=True)
    earlier = torch.where(starts, count - real, 0).cummax(dim=1).values  # in other documents
    return (count - earlier - 1).clamp(min=0)[:, k_len - q_len :]


def mask_and_positions(
    ids: Tensor, keys: Tensor | None, documents: Tensor | None, cache: KVCache | None, causal: bool
) -> tuple[Mask, Tensor | slice]:
    """Return the mask and the positions of new tokens, and count the tokens in the cache.

    Args:
        ids: (B, t) new tokens.
        keys: (B, t) bool, True = real token, or None.
        documents: (B, t) index of the packed document of each token, or None.
        cache: Cache of the earlier tokens; updated.
        causal: Hide later positions.

    Raises:
        InputError: `keys` has another length than `ids`.
    """
    k_len = ids.shape[1]
    if keys is not None and keys.shape[-1] != k_len:
        hint = " (with a cache, pass the mask of the new tokens only)" if cache is not None else ""
        raise InputError(
            f"must have one column per token: got {keys.shape[-1]} columns for"
            f" {k_len} tokens{hint}",
            option="mask",
        )
    if cache is not None:
        cache.advance(ids, keys, documents)
        keys, documents, k_len = cache.keys, cache.documents, cache.length
    mask = Mask(causal=causal, keys=keys, documents=documents)
    return mask, count_positions(keys, documents, ids.shape[1], k_len)
