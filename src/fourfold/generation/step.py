"""What decoding needs of a model: the logits of the next token, and rows that can be moved.

Shapes: B sentences, N rows (B, or B times the width of the beam), T prompt tokens, t new tokens,
S source tokens, D model width, V vocabulary.
"""

from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.core.cache import KVCache
from fourfold.core.errors import InputError


class Step(Protocol):
    """A language model as a decoding algorithm sees it."""

    def __call__(self, ids: Tensor) -> Tensor:
        """Logits (N, V) of the token after `ids` (N, t), which follow all ids given before."""

    def reorder(self, rows: Tensor) -> None:
        """From now on row i continues what row `rows[i]` was; rows may repeat or be left out."""


@runtime_checkable
class CausalModel(Protocol):
    """A model that continues its own input."""

    def hidden(
        self, ids: Tensor, mask: Tensor | None = None, cache: KVCache | None = None
    ) -> Tensor: ...

    def logits(self, h: Tensor) -> Tensor: ...


@runtime_checkable
class Seq2SeqModel(Protocol):
    """A model that writes a target for a source."""

    def encode(self, src: Tensor, src_mask: Tensor | None = None) -> Tensor: ...

    def decode(
        self,
        tgt: Tensor,
        memory: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        cache: KVCache | None = None,
    ) -> Tensor: ...

    def logits(self, h: Tensor) -> Tensor: ...


class CausalStep:
    """A `Step` of a causal model.

    Args:
        model: The model.
        mask: (B, T) bool of the prompt, which is the first thing the step is called with.
        cache: Remembers keys and values; without one every call sees all ids again, which is slow
            and only serves to check it.
    """

    def __init__(
        self, model: CausalModel, mask: Tensor | None, cache: KVCache | None = None
    ) -> None:
        self._model, self._mask, self.cache = model, mask, cache
        self._ids: Tensor | None = None

    def __call__(self, ids: Tensor) -> Tensor:
        if self._ids is not None:
            if self._mask is not None:
                self._mask = F.pad(self._mask, (0, ids.shape[1]), value=True)
            ids = torch.cat([self._ids, ids], dim=1)
        mask = self._mask
        h = self._model.hidden(ids, mask, self.cache)
        if self.cache is None:
            self._ids = ids
        else:
            self._mask = None  # the cache remembers it
        return self._model.logits(last_real(h, mask))

    def reorder(self, rows: Tensor) -> None:
        if self.cache is not None:
            self.cache.reorder(rows)
        self._ids, self._mask = _pick(self._ids, rows), _pick(self._mask, rows)


class Seq2SeqStep:
    """A `Step` of an encoder-decoder, which encodes the source at once.

    Args:
        model: The model.
        src: (B, S) int64.
        src_mask: (B, S) bool.
        cache: As for `CausalStep`.
    """

    def __init__(
        self,
        model: Seq2SeqModel,
        src: Tensor,
        src_mask: Tensor | None,
        cache: KVCache | None = None,
    ) -> None:
        self._model, self._src_mask, self.cache = model, src_mask, cache
        self._memory = model.encode(src, src_mask)  # (B, S, D)
        self._rows = len(src)
        self._ids: Tensor | None = None

    def __call__(self, ids: Tensor) -> Tensor:
        if self.cache is None:
            self._ids = ids = ids if self._ids is None else torch.cat([self._ids, ids], dim=1)
        h = self._model.decode(ids, self._memory, self._src_mask, cache=self.cache)
        return self._model.logits(h[:, -1])

    def reorder(self, rows: Tensor) -> None:
        sources = self._sources(rows)
        self._rows = len(rows)
        if self.cache is not None:
            self.cache.reorder(rows, sources)
        self._ids, self._src_mask = _pick(self._ids, rows), _pick(self._src_mask, sources)
        self._memory = self._memory.index_select(0, sources)

    def _sources(self, rows: Tensor) -> Tensor:
        """The sources of rows, as few as can serve the same number of them each."""
        each = rows // (self._rows // len(self._memory))
        sources, sizes = torch.unique_consecutive(each, return_counts=True)
        return sources if bool((sizes == sizes[0]).all()) else each


def last_real(h: Tensor, mask: Tensor | None) -> Tensor:
    """(N, D) of h (N, T, D) at the last real token of each row, wherever its padding stands."""
    if mask is None:
        return h[:, -1]
    columns = torch.arange(mask.shape[1], device=mask.device)
    last = (mask * columns).amax(dim=1)
    return h[torch.arange(len(h), device=h.device), last]


def refuse_nan(logits: Tensor) -> Tensor:
    """The logits.

    Raises:
        InputError: One is NaN: no token would be more likely than another.
    """
    if bool(logits.isnan().any()):
        raise InputError(
            "the model gives NaN for a next token: the checkpoint is damaged, its training"
            " diverged, or the precision is too low for it"
        )
    return logits


def _pick(x: Tensor | None, rows: Tensor) -> Tensor | None:
    return None if x is None else x.index_select(0, rows)
