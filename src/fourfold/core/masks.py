"""Who may attend to whom: one description, lowered once per forward to what a kernel takes.

Masks are bool, True = may attend. Shapes: B batch, H heads, Tq queries, Tk keys.
The queries are always the last Tq of the Tk positions (bottom-right alignment), which is what
decoding with a cache needs and what training without one trivially has.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

from fourfold.core.errors import InputError


class Lowered(NamedTuple):
    """A mask as `attend` takes it.

    Attributes:
        mask: None, a bool tensor broadcastable to (B, H, Tq, Tk), or a FlexAttention BlockMask.
        causal: Whether the kernel has to apply the causal triangle itself (then Tq == Tk).
    """

    mask: Any = None
    causal: bool = False


def triangle(q_len: int, k_len: int, device: torch.device) -> Tensor:
    """(Tq, Tk) bool: the last query sees every key, the one before all but the last, ..."""
    ones = torch.ones(q_len, k_len, dtype=torch.bool, device=device)
    return ones.tril(k_len - q_len)


@dataclass(frozen=True)
class Mask:
    """Description of an attention pattern; all given conditions must hold.

    Args:
        causal: No query sees a later position.
        keys: (B, Tk) True = a real token, False = padding that nobody may see.
        documents: (B, Tk) number of the packed document each key belongs to.
        query_documents: (B, Tq) the same for queries; None means the last Tq of `documents`.
        window: A query sees only keys less than this many positions away.

    Raises:
        InputError: `keys` are numbers.
    """

    causal: bool = False
    keys: Tensor | None = None
    documents: Tensor | None = None
    query_documents: Tensor | None = None
    window: int | None = None

    def __post_init__(self) -> None:
        if self.keys is not None and self.keys.dtype != torch.bool:
            raise InputError(f"a mask must be bool, True = a real token, not {self.keys.dtype}")

    def lower(self, q_len: int, k_len: int, device: torch.device, flex: bool = False) -> Lowered:
        """The cheapest equal form: nothing, a flag, a dense bool mask or a BlockMask."""
        causal = self.causal and q_len > 1  # a single query is the last one: it may see all
        plain = self.keys is None and self.documents is None and self.window is None
        if plain and (not causal or q_len == k_len):
            return Lowered(None, causal)
        if flex:
            return Lowered(self._block_mask(q_len, k_len, device))
        mask = torch.ones(1, 1, 1, k_len, dtype=torch.bool, device=device)
        if causal:
            mask = mask & triangle(q_len, k_len, device)
        if self.window is not None:
            q = torch.arange(k_len - q_len, k_len, device=device)[:, None]
            k = torch.arange(k_len, device=device)
            mask = mask & ((q - k).abs() < self.window)
        if self.keys is not None:
            mask = mask & self.keys[:, None, None, :]
        if self.documents is not None:
            same = self._query_documents(q_len)[:, :, None] == self.documents[:, None, :]
            mask = mask & same[:, None]
        return Lowered(mask)

    def _query_documents(self, q_len: int) -> Tensor:
        if self.query_documents is not None:
            return self.query_documents
        assert self.documents is not None
        return self.documents[:, -q_len:]

    def _block_mask(self, q_len: int, k_len: int, device: torch.device) -> Any:
        """FlexAttention's sparse form: whole blocks of masked pairs are never computed."""
        offset, keys, documents, window = k_len - q_len, self.keys, self.documents, self.window
        q_documents = None if documents is None else self._query_documents(q_len)

        def allowed(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            ok = q >= 0  # a true tensor of the right shape
            if self.causal:
                ok = ok & (k <= q + offset)
            if window is not None:
                ok = ok & ((q + offset - k).abs() < window)
            if keys is not None:
                ok = ok & keys[b, k]
            if documents is not None and q_documents is not None:
                ok = ok & (q_documents[b, q] == documents[b, k])
            return ok

        given = keys if keys is not None else documents
        n_batch = None if given is None else given.shape[0]
        return create_block_mask(allowed, n_batch, None, q_len, k_len, device=str(device))


def count_positions(
    keys: Tensor | None, documents: Tensor | None, q_len: int, k_len: int
) -> Tensor | slice:
    """Position of each of the last `q_len` tokens: padding is not counted, documents restart.

    Returns:
        A slice when positions simply run on (no mask, no documents), else (B, Tq) int64.
        So left-padded, right-padded and unpadded rows all give a token the same position.
    """
    if documents is None:
        if keys is None:
            return slice(k_len - q_len, k_len)
        documents = torch.zeros_like(keys, dtype=torch.long)
    real = torch.ones_like(documents) if keys is None else keys.long()  # (B, Tk)
    count = real.cumsum(dim=1)
    starts = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0), value=True)
    earlier = torch.where(starts, count - real, 0).cummax(dim=1).values  # of other documents
    return (count - earlier - 1).clamp(min=0)[:, k_len - q_len :]
