"""Key-value caches: `KVCache` of a decoder, and `LayerCache` of one of its layers.

The decoding loop owns the cache; modules hold no decoding state. A memory is the output of an
encoder. Shapes: B batch, H heads of keys and values, T tokens so far, t new tokens, S tokens of the
memory, Dh head width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


class LayerCache:
    """Cache of one layer: keys and values of T earlier tokens, and of the memory if there is one.

    Example:
        >>> cache, k = LayerCache(), torch.randn(1, 4, 3, 8)  # three tokens
        >>> cache.extend(k, k)[0].shape, cache.extend(k[:, :, :1], k[:, :, :1])[0].shape
        (torch.Size([1, 4, 3, 8]), torch.Size([1, 4, 4, 8]))
    """

    def __init__(self) -> None:
        self.length = 0  # T
        self.memory: tuple[Tensor, Tensor] | None = None  # keys and values (B, H, S, Dh)
        # Keys and values (B, H, capacity, Dh); the capacity doubles when T exceeds it.
        self.buffers: tuple[Tensor, Tensor] | None = None

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values (B, H, t, Dh), and return those of all T tokens, as views."""
        start = self.length
        self.length = start + k.shape[2]
        keys, values = self.buffers or (k[:, :, :0], v[:, :, :0])
        missing = self.length - keys.shape[2]
        if missing > 0:
            padding = (0, 0, 0, max(missing, start, 32))
            keys, values = F.pad(keys, padding), F.pad(values, padding)
        keys[:, :, start : self.length] = k
        values[:, :, start : self.length] = v
        self.buffers = keys, values
        return keys[:, :, : self.length], values[:, :, : self.length]

    def reorder(self, rows: Tensor, sources: Tensor | None) -> None:
        """Select batch elements in place: `rows` of earlier tokens, `sources` of the memory.

        `rows` and `sources` are as in `KVCache.reorder`, but None leaves the memory unchanged.
        """
        if self.buffers is not None:
            k, v = self.buffers
            self.buffers = k.index_select(0, rows), v.index_select(0, rows)
        if self.memory is not None and sources is not None:
            k, v = self.memory
            self.memory = k.index_select(0, sources), v.index_select(0, sources)


class KVCache:
    """Key-value cache of a model, with the padding mask and packed documents of earlier tokens.

    Do not reuse a cache after a forward call that raised an error, because the cache may already
    have counted the tokens of that call.

    Example:
        >>> from fourfold.models import CausalLM, CausalLMConfig
        >>> model = CausalLM(CausalLMConfig(vocab_size=9, d_model=8, n_layers=1, n_heads=2, d_ff=8))
        >>> _ = model.eval()
        >>> ids, cache = torch.tensor([[3, 1, 4, 1]]), KVCache()
        >>> _ = model(ids[:, :3], cache=cache)
        >>> last = model(ids[:, 3:], cache=cache)  # logits of the new token only
        >>> torch.allclose(last, model(ids)[:, 3:], atol=1e-6), cache.length
        (True, 4)
    """

    layer_class = LayerCache
    has_columns = True  # entry j of each row is its token j
    edits: tuple[object, ...] = ()  # under which the entries were computed

    def __init__(self) -> None:
        self.length = 0  # T
        self.keys: Tensor | None = None  # padding mask (B, T); None if all tokens are real
        self.documents: Tensor | None = None  # (B, T); None if there is one document
        self.layers: list[LayerCache] = []

    def layer(self, index: int) -> LayerCache:
        """Return the cache of layer `index`, creating it at its first use."""
        while len(self.layers) <= index:
            self.layers.append(self.layer_class())
        return self.layers[index]

    def advance(self, ids: Tensor, keys: Tensor | None, documents: Tensor | None) -> None:
        """Add new tokens (B, t) to `length`, `keys` and `documents`; None continues a document."""
        all_real = ids.new_ones(ids.shape[0], self.length, dtype=torch.bool)
        if keys is not None or self.keys is not None:
            old = all_real if self.keys is None else self.keys
            new = torch.ones_like(ids, dtype=torch.bool) if keys is None else keys
            self.keys = torch.cat([old, new], dim=1)
        if documents is not None or self.documents is not None:
            # New tokens without a document continue the last one, as in decoding.
            old = all_real.long() * 0 if self.documents is None else self.documents
            new = old[:, -1:].expand_as(ids) if documents is None else documents
            self.documents = torch.cat([old, new], dim=1)
        self.length += ids.shape[1]

    def n_keys(self, n_new: int, window: int | None = None) -> int:
        """Return the number of keys of a layer; a subclass may drop those outside a window."""
        return self.length

    def reorder(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Select elements of the batch in place, to reorder beams or drop finished sequences.

        The new batch index i continues the old index `rows[i]` (int64, may repeat). `sources` are
        the sources to keep if the memory is cached once per source, not once per beam; each then
        serves consecutive elements of the new batch. None: `rows` selects the memory, too.
        """
        memory = self.layers[0].memory if self.layers else None
        kept = rows if sources is None else sources
        # None avoids a copy of the keys and values of cross-attention.
        moved = None if memory is not None and is_identity(kept, len(memory[0])) else kept
        self.keys = None if self.keys is None else self.keys.index_select(0, rows)
        self.documents = None if self.documents is None else self.documents.index_select(0, rows)
        for layer in self.layers:
            layer.reorder(rows, moved)


def is_identity(rows: Tensor, size: int) -> bool:
    """Return True if the indices `rows` are 0, 1, ..., size - 1, so that no element moves.

    Example:
        >>> is_identity(torch.tensor([0, 1, 2]), 3), is_identity(torch.tensor([0, 0, 2]), 3)
        (True, False)
    """
    return torch.equal(rows, torch.arange(size, device=rows.device))
