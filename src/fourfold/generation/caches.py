"""BeamCache, WindowCache and StaticCache: key-value caches for beam search, windows, CUDA graphs.

Shapes: B sequences, K hypotheses of each sequence (1 in the first step), N = B K rows, H heads, P
cache entries of a sequence, t new tokens, Dh head width.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fourfold.core.attention import fold_beams_into_queries
from fourfold.core.kv_cache import KVCache, LayerCache, is_identity
from fourfold.errors import InputError


class BeamLayer(LayerCache):
    """Layer of a `BeamCache`: all hypotheses of a sequence share one batch element."""

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values, and return those of all entries of each sequence (B, H, P, Dh).

        They are (B, H, t, Dh) of the prompts in the first step, later (N, H, 1, Dh) of the last
        token of each row.
        """
        if self.buffers is not None:
            k, v = (fold_beams_into_queries(x, len(self.buffers[0])) for x in (k, v))
        return super().extend(k, v)


class BeamCache(KVCache):
    """Key-value cache for beam search, shared by all hypotheses of a sequence.

    An entry of the cache is the key and the value of one token. The first step adds one entry per
    token of the prompt, each later step K entries per sequence, one for the new token of each
    hypothesis. A hypothesis attends to the entries that the mask `keys` marks as its own, so that
    no key or value is copied when beam search reorders the hypotheses.

    The model must compute the position of a token from the mask, because entries of other
    hypotheses lie between the entries of one hypothesis. After the first step, the model must
    process one token per hypothesis.
    """

    layer_class = BeamLayer
    has_columns = False

    def __init__(self) -> None:
        super().__init__()
        self.n_sequences = 0  # B

    def advance(self, ids: Tensor, keys: Tensor | None, documents: Tensor | None) -> None:
        """Add entries to the mask `keys` (N, P): of prompts (B, t), later of one token (N, 1).

        The argument `keys` is not used after the first step.
        """
        assert documents is None, "packed documents are not supported"
        if self.keys is None:
            self.n_sequences = len(ids)
            self.keys = torch.ones_like(ids, dtype=torch.bool) if keys is None else keys
        else:  # each row attends to its own entry of this step
            own = torch.eye(len(ids) // self.n_sequences, dtype=torch.bool, device=ids.device)
            self.keys = torch.cat([self.keys, own.repeat(self.n_sequences, 1)], dim=1)
        self.length = self.keys.shape[1]

    def reorder(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Select hypotheses `rows` (N,), grouped by sequence with equally many of each.

        Only the mask is reordered; keys and values of sequences without a hypothesis are dropped.
        `sources` (n,) are the sequences that remain, in ascending order.
        """
        if self.keys is None:  # the model ignores the cache
            return
        if sources is None:
            sources = torch.unique_consecutive(rows // (len(self.keys) // self.n_sequences))
        self.keys = self.keys.index_select(0, rows)
        if not is_identity(sources, self.n_sequences):
            self.n_sequences = len(sources)
            for layer in self.layers:
                layer.reorder(sources, sources)


def beam_cache(model: Any) -> KVCache:
    """Build an empty cache for beam search with a causal LM or an encoder-decoder."""
    # A BeamCache neither keeps its entries in the order of their positions nor stores a state.
    return model.new_cache() if model.has_relative_positions or model.is_recurrent else BeamCache()


class WindowLayer(LayerCache):
    """Layer of a `WindowCache`, in which a token attends to W tokens, itself included."""

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values, and drop those that no later token attends to.

        Returns those of the t new tokens and of up to W - 1 tokens before them.
        """
        keys, values = super().extend(k, v)
        first = max(0, self.length - k.shape[2] - self.window + 1)
        if self.length >= 2 * self.window:
            start = self.length - self.window + 1  # of the tokens that the next token sees
            self.buffers = keys[:, :, start:].clone(), values[:, :, start:].clone()
            self.length = self.window - 1
        return keys[:, :, first:], values[:, :, first:]


class WindowCache(KVCache):
    """Cache of a decoder with windows, in which such a layer stores fewer than 2 W tokens.

    Here W is the window of the layer, or None for full attention, which stores all tokens. If there
    is padding or several documents, each layer stores all tokens, because the distance between two
    tokens is then not the number of entries between them.
    """

    def __init__(self, windows: Sequence[int | None]) -> None:
        super().__init__()
        self.windows = windows
        self.stores_all = False

    def layer(self, index: int) -> LayerCache:
        """Return the keys and values of the layer with the given index, created at first use."""
        while len(self.layers) <= index:
            window = None if self.stores_all else self.windows[len(self.layers)]
            self.layers.append(LayerCache() if window is None else WindowLayer(window))
        return self.layers[index]

    def n_keys(self, n_new: int, window: int | None = None) -> int:
        """Return the number of keys that a layer with a window gets for the last `n_new` tokens."""
        if self.stores_all or window is None:
            return self.length
        return min(self.length, window + n_new - 1)

    def advance(self, ids: Tensor, keys: Tensor | None, documents: Tensor | None) -> None:
        """Add new tokens.

        Raises:
            InputError: `keys` or `documents` is given for the first time after the first call.
        """
        if keys is not None or documents is not None:
            if self.length and not self.stores_all:
                problem = "must be given from the first call on if attention has a window"
                raise InputError(problem, option="documents" if keys is None else "mask")
            self.stores_all = True
        super().advance(ids, keys, documents)


class StaticCache(KVCache):
    """Key-value cache of fixed size for CUDA graphs.

    A CUDA graph runs the same kernels on the same memory in each step. The number of filled entries
    is therefore a tensor on the device, and the attention mask hides the other entries. The cache
    supports one token per step, and its rows cannot be reordered. Keys and values of the N prompts
    are copied from `cache`, the cache after the first step; `capacity` is the maximum P of tokens.
    """

    def __init__(self, cache: KVCache, n_rows: int, capacity: int, device: torch.device) -> None:
        super().__init__()
        assert cache.documents is None, "packed documents are not supported"
        self.length = capacity
        self.position = torch.zeros(1, dtype=torch.long, device=device)  # of the last token
        self.keys = self.filled = torch.zeros(n_rows, capacity, dtype=torch.bool, device=device)
        self.layers = [StaticLayer(layer, capacity, self.position) for layer in cache.layers]
        self.load(cache)

    def load(self, cache: KVCache) -> None:
        """Replace the content by that of another cache after the first step, in the same memory."""
        self.position.fill_(cache.length - 1)
        self.filled.zero_()
        self.filled[:, : cache.length] = True if cache.keys is None else cache.keys
        layers: Any = zip(self.layers, cache.layers, strict=True)
        for layer, other in layers:
            for new, old in zip(layer.buffers, other.buffers, strict=True):
                new.zero_()
                new[:, :, : other.length] = old[:, :, : other.length]

    def advance(self, ids: Tensor, keys: Tensor | None, documents: Tensor | None) -> None:
        """Unmask the next position in all rows. The arguments are ignored."""
        self.position += 1
        self.filled.index_fill_(1, self.position, True)


class StaticLayer(LayerCache):
    """Layer of a `StaticCache`, which shares the position (1,) int64 of the last token with it."""

    def __init__(self, layer: Any, capacity: int, position: Tensor) -> None:
        super().__init__()
        self.memory = layer.memory
        self._position = position
        # Zeros, because a masked weight of 0 times a NaN in unused memory would be NaN.
        keys, values = (x.new_zeros(*x.shape[:2], capacity, x.shape[3]) for x in layer.buffers)
        self.buffers = keys, values

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store keys and values (N, H, 1, Dh); return all (N, H, P, Dh), unused ones at the end."""
        assert self.buffers is not None
        keys, values = self.buffers
        return keys.index_copy_(2, self._position, k), values.index_copy_(2, self._position, v)
