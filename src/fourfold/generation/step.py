"""CausalStep and Seq2SeqStep: objects that run a model for one decoding step per call.

A step returns the logits of the next token, and keeps the decoder state between calls. The decoder
state is the key-value cache, the padding mask, and the memory (the output of an encoder). A row of
the decoder state belongs to one sequence in sampling, and to one hypothesis in beam search. Rows of
sequences that have ended are dropped. Without a cache, each call computes all tokens again, which
is slow and serves to verify the cache.

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
    """Interface of a language model for decoding algorithms, such as sampling and beam search."""

    def __call__(self, ids: Tensor) -> Tensor:
        """Append tokens (N, t) to the sequences, and return the logits (N, V) of the next ones.

        The tokens are the prompts in the first call, later one token per row.
        """

    def reorder(self, rows: Tensor) -> None:
        """Select rows of the decoder state in place: the new row i is a copy of row `rows[i]`.

        An index may occur several times, since several new hypotheses may extend the same old one,
        or not at all, since sequences end.
        """


class CausalStep:
    """`Step` of a causal LM with the methods `hidden(ids, mask, cache)` and `logits(h)`.

    The mask (B, T) is that of the prompts, True = real token.
    """

    def __init__(self, model: Any, mask: Tensor | None, cache: KVCache | None = None) -> None:
        self._model = model
        self._mask = mask
        self.cache = cache
        self._ids: Tensor | None = None

    @property
    def has_keys(self) -> bool:
        """True for a key-value cache that a `StaticCache` can replace."""
        return isinstance(self.cache, KVCache) and not isinstance(self.cache, WindowCache)

    def __call__(self, ids: Tensor) -> Tensor:
        """Return the logits (N, V) after prompts (N, T), in later calls after one token (N, 1)."""
        if self._ids is not None:
            if self._mask is not None:
                self._mask = F.pad(self._mask, (0, ids.shape[1]), value=True)
            ids = torch.cat([self._ids, ids], dim=1)
        mask = self._mask
        h = self._model.hidden(ids, mask=mask, cache=self.cache)
        if self.cache is None:
            self._ids = ids
        else:
            self._mask = None  # the cache stores it
        return self._model.logits(last_token_state(h, mask))

    def reorder(self, rows: Tensor) -> None:
        """Select rows of cache, mask and earlier tokens."""
        if self.cache is not None:
            self.cache.reorder(rows)
        self._ids = index_rows(self._ids, rows)
        self._mask = index_rows(self._mask, rows)


class Seq2SeqStep:
    """`Step` of an encoder-decoder; the constructor runs the encoder.

    The model has the methods `encode(src, src_mask)`, `decode(tgt, memory, src_mask, cache=cache)`
    and `logits(h)`. Sources are token ids (B, S) or images.
    """

    def __init__(
        self, model: Any, src: Tensor, src_mask: Tensor | None, cache: KVCache | None = None
    ) -> None:
        self._model = model
        self._src_mask = src_mask
        self.cache = cache
        self._memory: Tensor = model.encode(src, src_mask=src_mask)  # (B, S, D)
        self._rows = len(src)
        self._ids: Tensor | None = None

    def __call__(self, ids: Tensor) -> Tensor:
        """Append a token (N, 1) to each target, and return the logits (N, V) of the next token."""
        if self.cache is None:
            self._ids = ids = ids if self._ids is None else torch.cat([self._ids, ids], dim=1)
        h = self._model.decode(ids, self._memory, src_mask=self._src_mask, cache=self.cache)
        return self._model.logits(h[:, -1])

    def reorder(self, rows: Tensor) -> None:
        """Select rows of cache, encoder output, source mask and earlier tokens."""
        sources = self._sources_of(rows)
        self._rows = len(rows)
        if self.cache is not None:
            self.cache.reorder(rows, sources)
        self._ids = index_rows(self._ids, rows)
        self._src_mask = index_rows(self._src_mask, sources)
        self._memory = self._memory.index_select(0, sources)

    def _sources_of(self, rows: Tensor) -> Tensor:
        """Return the batch indices of the encoder output that the old rows `rows` (N,) belong to.

        If all sources have equally many rows, such as hypotheses, each has one index.
        """
        per_row = rows // (self._rows // len(self._memory))
        sources, sizes = torch.unique_consecutive(per_row, return_counts=True)
        return sources if bool((sizes == sizes[0]).all()) else per_row


def last_token_state(h: Tensor, mask: Tensor | None) -> Tensor:
    """Return the hidden states (N, D) of the last real token of each row of h (N, T, D)."""
    if mask is None:
        return h[:, -1]
    last = (mask * torch.arange(mask.shape[1], device=mask.device)).amax(dim=1)
    return h[torch.arange(len(h), device=h.device), last]


def check_logits(logits: Tensor) -> Tensor:
    """Return logits of any shape unchanged, if their softmax is defined.

    Raises:
        InputError: A logit is NaN or infinite; -inf is allowed.
    """
    if bool((~(logits < math.inf)).any()):  # a comparison with NaN is False
        message = "computes NaN or infinite logits: the training diverged, the checkpoint is"
        raise InputError(f"{message} corrupted, or the precision is too low", option="model")
    return logits


def index_rows(x: Tensor | None, rows: Tensor) -> Tensor | None:
    """Return the elements (N, ...) of x (B, ...) at the indices `rows` (N,); None if x is None."""
    return None if x is None else x.index_select(0, rows)


@contextmanager
def decoding_mode(model: ModuleT) -> Iterator[ModuleT]:
    """Context manager that sets torch to inference mode, and yields the model in eval mode.

    `model` itself is never changed, so several threads can decode from it at the same time: if a
    module is in training mode or compiled, a copy that shares all tensors is yielded.
    """
    # In compiled modules, each new length would trigger a recompilation, which would count towards
    # the recompile limit of training. On a CPU, `decode_layout` makes linear layers faster.
    changes = any(x.training or x._compiled_call_impl is not None for x in model.modules())
    quiet = eval_copy(model) if changes else model
    with torch.inference_mode(), decode_layout(model.parameters()):
        yield quiet


def eval_copy(model: ModuleT) -> ModuleT:
    """Copy the modules of a model, but not their tensors, and set the copies to eval mode.

    Attributes that contain modules, such as lists and bound methods, refer to the copies. Modules
    compiled by `torch.compile` become plain modules.
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
    return moved(model)
