"""CausalStep and Seq2SeqStep: decoding steps, which return the logits of the next token.

The decoder state of a step is the key-value cache, the padding mask and the memory (the output of
the encoder, if there is one).
Shapes: B prompts or sources, N rows of the decoder state (one for each prompt or source that has
not ended; in beam search, one for each of its hypotheses), T prompt tokens, t new tokens, S source
tokens, D model width, V vocabulary.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourfold.core.kv_cache import KVCache
from fourfold.errors import InputError
from fourfold.generation.caches import WindowCache
from fourfold.kernels.cpu_decoding import decode_layout


class Step(Protocol):
    """Interface of a stateful object that runs a language model for one decoding step per call.

    A decoding algorithm passes the last tokens and gets the logits of the next token. Between
    calls, a step keeps the decoder state: all that the model remembers of the earlier tokens.
    """

    def __call__(self, ids: Tensor) -> Tensor:
        """Append `ids` (N, t) to the earlier tokens; return logits (N, V) of the next token."""

    def reorder(self, rows: Tensor) -> None:
        """Reorder the decoder state in place: the new row i continues the old row `rows[i]`.

        Beam search calls this method after each step, because a new hypothesis may extend any old
        hypothesis of the same source or prompt. Sampling calls this method to drop sequences that
        have ended.

        Args:
            rows: (N,) int64, for each new row the index of the old row that it continues. An old
                row may be continued several times, or not at all.
        """


class CausalStep:
    """Decoding step of a causal LM.

    Args:
        model: Model with the methods `hidden(ids, mask, cache)` and `logits(h)`.
        mask: (B, T) bool of the prompts, True = real token; None means that all tokens are real.
        cache: Key-value cache. With None, each call computes all tokens again, which is slow and
            serves to verify the cache.
    """

    def __init__(self, model: Any, mask: Tensor | None, cache: KVCache | None = None) -> None:
        self._model = model
        self._mask = mask
        self.cache = cache
        self._ids: Tensor | None = None

    @property
    def has_keys(self) -> bool:
        """True if there is a key-value cache, which a CUDA graph can replace by a static one."""
        return isinstance(self.cache, KVCache) and not isinstance(self.cache, WindowCache)

    def __call__(self, ids: Tensor) -> Tensor:
        """Return logits (N, V) of the next token.

        Args:
            ids: Prompts (N, T) in the first call, later one more token per row, (N, 1).
        """
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
        logits: Tensor = self._model.logits(last_token_state(h, mask))
        return logits

    def reorder(self, rows: Tensor) -> None:
        """Reorder cache, mask and earlier tokens: the new row i continues the old row `rows[i]`."""
        if self.cache is not None:
            self.cache.reorder(rows)
        self._ids = index_rows(self._ids, rows)
        self._mask = index_rows(self._mask, rows)


class Seq2SeqStep:
    """Decoding step of an encoder-decoder; the constructor encodes the source.

    Args:
        model: Model with the methods `encode(src, src_mask)`, `decode(tgt, memory, src_mask,
            cache=cache)` and `logits(h)`.
        src: Source token ids (B, S) int64, or images.
        src_mask: (B, S) bool, True = real token; None means that all tokens are real.
        cache: Key-value cache. With None, each call computes all tokens again, which is slow and
            serves to verify the cache.
    """

    def __init__(
        self, model: Any, src: Tensor, src_mask: Tensor | None, cache: KVCache | None = None
    ) -> None:
        self._model = model
        self._src_mask = src_mask
        self.cache = cache
        self._memory: Tensor = model.encode(src, src_mask)  # (B, S, D)
        self._rows = len(src)
        self._ids: Tensor | None = None

    def __call__(self, ids: Tensor) -> Tensor:
        """Append a token to each target, and return logits (N, V) of the next token.

        Args:
            ids: Token to append to each target, (N, 1); BOS in the first call.
        """
        if self.cache is None:
            self._ids = ids = ids if self._ids is None else torch.cat([self._ids, ids], dim=1)
        h = self._model.decode(ids, self._memory, self._src_mask, cache=self.cache)
        logits: Tensor = self._model.logits(h[:, -1])
        return logits

    def reorder(self, rows: Tensor) -> None:
        """Reorder the decoder state in place: the new row i continues the old row `rows[i]`.

        The state is the key-value cache, the output of the encoder, the source mask, and without a
        cache the earlier tokens.
        """
        sources = self._sources_of(rows)
        self._rows = len(rows)
        if self.cache is not None:
            self.cache.reorder(rows, sources)
        self._ids = index_rows(self._ids, rows)
        self._src_mask = index_rows(self._src_mask, sources)
        self._memory = self._memory.index_select(0, sources)

    def _sources_of(self, rows: Tensor) -> Tensor:
        """Return the batch indices of `self._memory` that must be kept for the old rows `rows`.

        If all sources in `rows` have the same number of rows, the result contains the index of each
        of these sources once. Otherwise the result contains one index for each element of `rows`.
        """
        per_row = rows // (self._rows // len(self._memory))
        sources, sizes = torch.unique_consecutive(per_row, return_counts=True)
        return sources if bool((sizes == sizes[0]).all()) else per_row


def last_token_state(h: Tensor, mask: Tensor | None) -> Tensor:
    """Return the hidden state of the last real token of each row.

    Args:
        h: Hidden states (N, T, D).
        mask: (N, T) bool, True = real token; None means that all tokens are real.

    Returns:
        (N, D).
    """
    if mask is None:
        return h[:, -1]
    columns = torch.arange(mask.shape[1], device=mask.device)
    last = (mask * columns).amax(dim=1)
    return h[torch.arange(len(h), device=h.device), last]


def raise_on_nan(logits: Tensor) -> Tensor:
    """Check that no logit is NaN, and return the logits unchanged.

    Raises:
        InputError: A logit is NaN.
    """
    if bool(logits.isnan().any()):
        raise InputError(
            "computes NaN logits: the training diverged, the checkpoint is corrupted, or the"
            " precision is too low",
            option="model",
        )
    return logits


def index_rows(x: Tensor | None, rows: Tensor) -> Tensor | None:
    """Return the elements of x (B, ...) at the batch indices `rows` (N,); None if x is None."""
    return None if x is None else x.index_select(0, rows)


@contextmanager
def decoding_mode(model: nn.Module) -> Iterator[None]:
    """Context in which a model decodes, in eval mode and torch's inference mode.

    At the end of the context, the earlier modes of all modules are restored. Compiled blocks of the
    model run uncompiled. Otherwise each new length would trigger a recompilation and use up torch's
    recompile limit, which training shares.
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
