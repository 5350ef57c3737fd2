"""Models as step functions for decoding: logits of the next token, and reordering of rows.

Shapes: B sentences, N rows (B, or B times the width of the beam), T prompt tokens, t new tokens,
S source tokens, D model width, V vocabulary.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourfold.core.kv_cache import KVCache
from fourfold.errors import InputError
from fourfold.kernels.cpu_decoding import decode_layout


class Step(Protocol):
    """Interface between a language model and a decoding algorithm."""

    def __call__(self, ids: Tensor) -> Tensor:
        """Return logits (N, V) of the next token after `ids` (N, t), appended to earlier ids."""

    def reorder(self, rows: Tensor) -> None:
        """Replace row i by row `rows[i]`; rows may repeat or be left out."""


@runtime_checkable
class CausalModel(Protocol):
    """Causal language model, which continues its own input."""

    def hidden(
        self, ids: Tensor, mask: Tensor | None = None, cache: KVCache | None = None
    ) -> Tensor: ...

    def logits(self, h: Tensor) -> Tensor: ...


@runtime_checkable
class Seq2SeqModel(Protocol):
    """Encoder-decoder, which generates a target for a source."""

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
        mask: (B, T) bool of the prompt, which is the argument of the first call; or None.
        cache: Key-value cache. Without one, each call processes all tokens again, which is slow
            and serves to verify the cache.
    """

    def __init__(
        self, model: CausalModel, mask: Tensor | None, cache: KVCache | None = None
    ) -> None:
        self._model = model
        self._mask = mask
        self.cache = cache
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
            self._mask = None  # the cache stores it
        return self._model.logits(last_token_state(h, mask))

    def reorder(self, rows: Tensor) -> None:
        if self.cache is not None:
            self.cache.reorder(rows)
        self._ids = index_rows(self._ids, rows)
        self._mask = index_rows(self._mask, rows)


class Seq2SeqStep:
    """A `Step` of an encoder-decoder; the constructor encodes the source.

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
        self._model = model
        self._src_mask = src_mask
        self.cache = cache
        self._memory = model.encode(src, src_mask)  # (B, S, D)
        self._rows = len(src)
        self._ids: Tensor | None = None

    def __call__(self, ids: Tensor) -> Tensor:
        if self.cache is None:
            self._ids = ids = ids if self._ids is None else torch.cat([self._ids, ids], dim=1)
        h = self._model.decode(ids, self._memory, self._src_mask, cache=self.cache)
        return self._model.logits(h[:, -1])

    def reorder(self, rows: Tensor) -> None:
        sources = self._sources_of(rows)
        self._rows = len(rows)
        if self.cache is not None:
            self.cache.reorder(rows, sources)
        self._ids = index_rows(self._ids, rows)
        self._src_mask = index_rows(self._src_mask, sources)
        self._memory = self._memory.index_select(0, sources)

    def _sources_of(self, rows: Tensor) -> Tensor:
        """Return the sources of `rows`, once each if all have equally many rows, else per row."""
        per_row = rows // (self._rows // len(self._memory))
        sources, sizes = torch.unique_consecutive(per_row, return_counts=True)
        return sources if bool((sizes == sizes[0]).all()) else per_row


def last_token_state(h: Tensor, mask: Tensor | None) -> Tensor:
    """Return h (N, T, D) at the last real token of each row, (N, D)."""
    if mask is None:
        return h[:, -1]
    columns = torch.arange(mask.shape[1], device=mask.device)
    last = (mask * columns).amax(dim=1)
    return h[torch.arange(len(h), device=h.device), last]


def raise_on_nan(logits: Tensor) -> Tensor:
    """Return the logits unchanged.

    Raises:
        InputError: A logit is NaN.
    """
    if bool(logits.isnan().any()):
        raise InputError(
            "computes NaN logits: the checkpoint is corrupted, its training diverged, or the"
            " precision is too low for it",
            option="model",
        )
    return logits


def index_rows(x: Tensor | None, rows: Tensor) -> Tensor | None:
    """Select rows of a tensor (B, ...), or return None for None."""
    return None if x is None else x.index_select(0, rows)


@contextmanager
def decoding_mode(model: nn.Module) -> Iterator[None]:
    """Switch a model to evaluation in inference mode, and restore the mode of each module.

    Compiled blocks run uncompiled, because each new length would trigger a recompilation until
    torch's recompile limit is exhausted for training, too.
    """
    modes = [(module, module.training) for module in model.modules()]
    compiled = any(module._compiled_call_impl is not None for module, _ in modes)
    uncompiled = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
    model.eval()
    try:
        with torch.inference_mode(), decode_layout(model.parameters()), uncompiled:
            yield
    finally:
        for module, training in modes:
            module.training = training
