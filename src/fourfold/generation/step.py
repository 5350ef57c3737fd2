"""CausalStep and Seq2SeqStep: objects that run a model for one decoding step per call.

A step returns the logits of the next token, and keeps the decoder state between calls. The decoder
state is the key-value cache, the padding mask, and the memory (the output of an encoder). A row of
the decoder state belongs to one sequence in sampling, and to one hypothesis in beam search. Rows of
sequences that have ended are dropped.
Shapes: B prompts or sources, N rows of the decoder state, T prompt tokens, t new tokens, S source
tokens, D model width, V vocabulary.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fourfold.core.kv_cache import KVCache
from fourfold.errors import InputError
from fourfold.generation.caches import WindowCache
from fourfold.kernels.cpu_decoding import decode_layout

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class Step(Protocol):
    """Interface of a language model for decoding algorithms, such as sampling and beam search.

    Each call appends tokens to N sequences, and returns the logits of the next token of each
    sequence. The object keeps the decoder state between calls, so a call takes the new tokens only.
    The decoder state has one row for each sequence. It consists of the key-value cache of the
    earlier tokens, their padding mask and, for an encoder-decoder, the output of the encoder.
    """

    def __call__(self, ids: Tensor) -> Tensor:
        """Append tokens to the sequences, and run the model on these tokens.

        Args:
            ids: Token ids (N, t) int64: the prompts in the first call, later one token per row.

        Returns:
            Logits (N, V) of the next token of each sequence.
        """

    def reorder(self, rows: Tensor) -> None:
        """Select rows of the decoder state in place: the new row i is a copy of row `rows[i]`.

        Beam search calls this method after each step, because several new hypotheses may extend the
        same old hypothesis. Sampling calls this method to drop sequences that have ended.

        Args:
            rows: Indices of old rows, (N,) int64, one for each new row. An index may occur several
                times, or not at all.
        """


class CausalStep:
    """Decoding step of a causal LM, which keeps the decoder state between calls (see `Step`).

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
        """True if the cache is a key-value cache that a `StaticCache` can replace."""
        return isinstance(self.cache, KVCache) and not isinstance(self.cache, WindowCache)

    def __call__(self, ids: Tensor) -> Tensor:
        """Run the model on new tokens, and return the logits (N, V) of the next token.

        Args:
            ids: Token ids int64: prompts (N, T) in the first call, later one new token per row,
                (N, 1).
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
        """Select rows of cache, mask and earlier tokens: the new row i is a copy of row `rows[i]`.

        Args:
            rows: Indices of old rows, (N,) int64, one for each new row.
        """
        if self.cache is not None:
            self.cache.reorder(rows)
        self._ids = index_rows(self._ids, rows)
        self._mask = index_rows(self._mask, rows)


class Seq2SeqStep:
    """Decoding step of an encoder-decoder, which keeps the decoder state between calls.

    The class implements `Step`. The constructor runs the encoder.

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
        """Append a token to each target, and return the logits (N, V) of the next token.

        Args:
            ids: Token ids (N, 1) int64, one for each target: BOS in the first call, later the last
                token.
        """
        if self.cache is None:
            self._ids = ids = ids if self._ids is None else torch.cat([self._ids, ids], dim=1)
        h = self._model.decode(ids, self._memory, self._src_mask, cache=self.cache)
        logits: Tensor = self._model.logits(h[:, -1])
        return logits

    def reorder(self, rows: Tensor) -> None:
        """Select rows of the decoder state in place: the new row i is a copy of row `rows[i]`.

        The state is the key-value cache, the output of the encoder and the source mask. Without a
        cache, the state also includes the earlier tokens.

        Args:
            rows: Indices of old rows, (N,) int64, one for each new row.
        """
        sources = self._sources_of(rows)
        self._rows = len(rows)
        if self.cache is not None:
            self.cache.reorder(rows, sources)
        self._ids = index_rows(self._ids, rows)
        self._src_mask = index_rows(self._src_mask, sources)
        self._memory = self._memory.index_select(0, sources)

    def _sources_of(self, rows: Tensor) -> Tensor:
        """Return the batch indices of the encoder output that the old rows `rows` (N,) belong to.

        The encoder output has one batch element for several rows, such as the hypotheses of a
        source. If all sources in `rows` have the same number of rows, the result (n,) contains the
        index of each of these sources once. Otherwise the result (N,) contains one index for each
        element of `rows`.
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
        Hidden states (N, D).
    """
    if mask is None:
        return h[:, -1]
    columns = torch.arange(mask.shape[1], device=mask.device)
    last = (mask * columns).amax(dim=1)
    return h[torch.arange(len(h), device=h.device), last]


def check_logits(logits: Tensor) -> Tensor:
    """Return logits of any shape unchanged, if their softmax is defined.

    Raises:
        InputError: A logit is NaN or infinite; -inf is allowed.
    """
    if bool((~(logits < math.inf)).any()):  # a comparison with NaN is False
        raise InputError(
            "computes NaN or infinite logits: the training diverged, the checkpoint is corrupted,"
            " or the precision is too low",
            option="model",
        )
    return logits


def index_rows(x: Tensor | None, rows: Tensor) -> Tensor | None:
    """Return the elements (N, ...) of x (B, ...) at the batch indices `rows` (N,) int64.

    The result is None if x is None.
    """
    return None if x is None else x.index_select(0, rows)


@contextmanager
def decoding_mode(model: ModuleT) -> Iterator[ModuleT]:
    """Context manager that sets torch to inference mode, and yields the model in eval mode.

    The yielded model is `model` itself, or a copy that shares all tensors and hooks with it (see
    `eval_copy`) if a module of `model` is in training mode. `model` is never changed, so several
    threads can decode from it at the same time. Modules that were compiled with `module.compile`
    run uncompiled in the yielded model. Otherwise each new length would trigger a recompilation,
    and the recompilations would count towards the recompile limit of training. On a CPU,
    `decode_layout` makes linear layers faster.
    """
    changes = any(x.training or x._compiled_call_impl is not None for x in model.modules())
    quiet = eval_copy(model) if changes else model
    with torch.inference_mode(), decode_layout(model.parameters()):
        yield quiet


def eval_copy(model: ModuleT) -> ModuleT:
    """Copy the modules of a model, but not their tensors, and set the copies to eval mode.

    The copies share parameters, buffers, hooks and other attributes with the modules of `model`.
    Lists, tuples, dictionaries and bound methods among the attributes refer to the copies if they
    contain modules. Modules compiled by `torch.compile` become plain modules.
    """
    copies = {id(module): object.__new__(type(module)) for module in model.modules()}

    def moved(value: Any) -> Any:
        if isinstance(value, nn.Module):
            return copies.get(id(getattr(value, "_orig_mod", value)), value)
        if isinstance(value, MethodType):
            return MethodType(value.__func__, moved(value.__self__))
        if type(value) in (list, tuple) and any(isinstance(x, nn.Module) for x in value):
            return type(value)(map(moved, value))
        if type(value) is dict and any(isinstance(x, nn.Module) for x in value.values()):
            return {name: moved(x) for name, x in value.items()}
        return value

    for module in model.modules():
        attributes = {name: moved(value) for name, value in vars(module).items()}
        # Set without `nn.Module.__setattr__`, which would register the attributes.
        vars(copies[id(module)]).update(attributes, training=False, _compiled_call_impl=None)
    quiet: ModuleT = moved(model)
    return quiet
