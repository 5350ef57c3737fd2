"""A cache of fixed size, for steps that are recorded.

Shapes: B batch rows, H heads, Dh head width.
"""

import torch
from torch import Tensor

from fourfold.core.cache import KVCache, LayerCache


class StaticCache(KVCache):
    """A full cache in which a place is a number on the device: each step is the same work.

    What stands behind the place is masked away. It serves steps of one token, and rows stay.

    Args:
        cache: What was seen so far.
        rows: B.
        capacity: Tokens there is room for.
        device: Where.
    """

    def __init__(self, cache: KVCache, rows: int, capacity: int, device: torch.device) -> None:
        super().__init__()
        assert cache.documents is None, "documents are not continued"
        self.length = capacity
        self.place = torch.tensor([cache.length - 1], device=device)  # of the last token
        self.seen = torch.zeros(rows, capacity, dtype=torch.bool, device=device)
        self.seen[:, : cache.length] = True if cache.keys is None else cache.keys
        self.keys = self.seen
        self.layers = [StaticLayer(layer, capacity, self.place) for layer in cache.layers]

    def advance(self, ids: Tensor, keys: Tensor | None, documents: Tensor | None) -> None:
        """Take note of one new token a row, `ids` (B, 1)."""
        self.place += 1
        self.seen.index_fill_(1, self.place, True)


class StaticLayer(LayerCache):
    """One layer's share of a `StaticCache`."""

    def __init__(self, layer: LayerCache, capacity: int, place: Tensor) -> None:
        super().__init__()
        self.memory, self._place = layer.memory, place
        assert layer.buffers is not None
        grown = []
        for old in layer.buffers:
            # Zeros, not what happens to be there: masked weights are 0, but 0 times NaN is not.
            new = old.new_zeros(*old.shape[:2], capacity, old.shape[3])
            new[:, :, : layer.length] = old[:, :, : layer.length]
            grown.append(new)
        self.buffers = (grown[0], grown[1])

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Put (B, H, 1, Dh) keys and values at the place; return all, (B, H, capacity, Dh)."""
        assert self.buffers is not None
        for buffer, new in zip(self.buffers, (k, v), strict=True):
            buffer.index_copy_(2, self._place, new)
        return self.buffers
