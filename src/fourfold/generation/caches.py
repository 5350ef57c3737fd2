"""BeamCache, WindowCache and StaticCache: key-value caches for beam search, windows, CUDA graphs.

Shapes: B sequences, K hypotheses of each sequence (1 at first), N = B K rows, H heads, P cache
entries of a sequence, Dh head width.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fourfold.core.attention import fold_beams_into_queries
from fourfold.core.kv_cache import KVCache, LayerCache, is_identity
from fourfold.errors import InputError


class BeamLayer(LayerCache):
    """Cache of one layer in a `BeamCache`, with one batch element for all beams of a sequence."""

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append the keys and values of new tokens.

        Args:
            k: Keys of the prompts (B, H, t, Dh) in the first step, later of the last token of each
                row (N, H, 1, Dh).
            v: Values, with the shape of `k`.

        Returns:
            Keys and values of all entries of each sequence, (B, H, P, Dh) each.
        """
        if self.buffers is not None:
            k, v = (fold_beams_into_queries(x, len(self.buffers[0])) for x in (k, v))
        return super().extend(k, v)


class BeamCache(KVCache):
    """Cache that stores the keys and values of all hypotheses of a sequence together.

    An entry of the cache is the key and the value of one token. The first step adds one entry per
    token of the prompt. Each later step adds K entries per sequence, one for the new token of each
    hypothesis. The mask `keys` (N, P) marks the entries of each hypothesis and of its ancestors
    (the earlier hypotheses that the hypothesis extends). A hypothesis attends to marked entries
    only. Therefore no key or value is copied when beam search reorders the decoder state.

    The model must compute the position of a token from the mask, because the entries of other
    hypotheses lie between those of one hypothesis. After the first step, the model must process one
    token per hypothesis.

    Attributes:
        length: Number P of entries of a sequence.
        n_sequences: Number B of sequences.
    """

    layer_class = BeamLayer

    def __init__(self) -> None:
        super().__init__()
        self.n_sequences = 0  # B

    def advance(self, ids: Tensor, keys: Tensor | None, documents: Tensor | None) -> None:
        """Append entries for new tokens to the mask of this cache, the attribute `keys`.

        Args:
            ids: Prompts (B, t) in the first step, later one token of each row (N, 1).
            keys: Mask (B, t) of the prompts, True = real token; None means that all are real. Not
                used after the first step.
            documents: None, since packed documents are not supported.
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
        """Let each new row i continue the old row `rows[i]`, in place.

        A row is a hypothesis. Only the rows of the mask `keys` are reordered. The keys and values
        of a sequence are not reordered, and are dropped when the sequence has ended.

        Args:
            rows: (N,) int64, for each new row the index of the old row that it continues. An index
                may repeat. The rows must be grouped by sequence, with K rows for each sequence.
            sources: Indices of the sequences that have not ended, among the sequences before this
                call, in ascending order. None computes the indices from `rows`.
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
    """Build a cache for beam search with `model`.

    A model with relative positions needs a plain `KVCache`, whose entries are in the order of their
    positions, and a recurrent model its own cache. Other models use a `BeamCache`.
    """
    is_plain = model.has_relative_positions or model.is_recurrent
    return model.new_cache() if is_plain else BeamCache()


class WindowLayer(LayerCache):
    """Cache of one layer in a `WindowCache`; its `length` counts the tokens whose keys are stored.

    Args:
        window: Number W of tokens that a token attends to, itself included.
    """

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append the keys and values (B, H, t, Dh) of new tokens.

        Returns:
            Keys and values of the new tokens and of the W - 1 tokens before them, or of all tokens
            if there are fewer.
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

    Here W is the window of the layer. A layer with full attention stores all tokens. If there is
    padding or several documents, each layer stores all tokens, because the distance between two
    tokens is then not the number of entries between them.

    Args:
        windows: For each layer, the number W of tokens that a token attends to, itself included;
            None for a layer with full attention.
    """

    def __init__(self, windows: Sequence[int | None]) -> None:
        super().__init__()
        self.windows = windows
        self.stores_all = False

    def layer(self, index: int) -> LayerCache:
        """Return the cache of layer `index`, creating it at its first use."""
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
        """Add new tokens to `length`, `keys` and `documents`; arguments as for `KVCache.advance`.

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
    """Cache of fixed size for CUDA graphs: each step runs the same kernels on the same memory.

    The position of the last token is a tensor on the device, and later entries are masked. The
    cache supports one token per step, and its rows cannot be reordered.

    Args:
        cache: Cache after the first step, from which the keys and values of the prompts are copied.
        n_rows: Number N of prompts in the batch.
        capacity: Maximum number P of tokens.
        device: Device of the cache.
    """

    def __init__(self, cache: KVCache, n_rows: int, capacity: int, device: torch.device) -> None:
        super().__init__()
        assert cache.documents is None, "packed documents are not supported"
        self.length = capacity
        self.position = torch.tensor([cache.length - 1], device=device)  # of the last token
        self.filled = torch.zeros(n_rows, capacity, dtype=torch.bool, device=device)
        self.filled[:, : cache.length] = True if cache.keys is None else cache.keys
        self.keys = self.filled
        self.layers = [StaticLayer(layer, capacity, self.position) for layer in cache.layers]

    def advance(self, ids: Tensor, keys: Tensor | None, documents: Tensor | None) -> None:
        """Go to the next position and unmask it in all rows; the arguments are ignored."""
        self.position += 1
        self.filled.index_fill_(1, self.position, True)


class StaticLayer(LayerCache):
    """Cache of one layer in a `StaticCache`.

    Args:
        layer: Cache of the layer after the first step, from which keys and values are copied.
        capacity: Maximum number P of tokens.
        position: Position of the last token, a Tensor (1,) that the `StaticCache` advances.
    """

    def __init__(self, layer: LayerCache, capacity: int, position: Tensor) -> None:
        super().__init__()
        self.memory = layer.memory
        self._position = position
        assert layer.buffers is not None
        # Zeros, because a masked weight of 0 times a NaN in unused memory would be NaN.
        keys, values = (
            F.pad(old[:, :, : layer.length], (0, 0, 0, capacity - layer.length))
            for old in layer.buffers
        )
        self.buffers = keys, values

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values of the last token; return the keys and values of all tokens.

        Args:
            k: Keys (N, H, 1, Dh) of the last token of each row.
            v: Values (N, H, 1, Dh) of the last token of each row.

        Returns:
            Keys and values, (N, H, P, Dh) each, with unused entries at the end.
        """
        assert self.buffers is not None
        keys, values = self.buffers
        return keys.index_copy_(2, self._position, k), values.index_copy_(2, self._position, v)
