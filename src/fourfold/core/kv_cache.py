"""Keys and values of the tokens already decoded. The decoding loop owns it; modules hold no state.

Shapes: B batch rows, H heads, T tokens so far, Dh head width.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from fourfold.core.errors import InputError
from fourfold.core.masks import Mask, count_positions


class LayerCache:
    """One layer's share: a buffer that doubles when full, and the projected memory."""

    def __init__(self) -> None:
        self.length = 0
        self.memory: tuple[Tensor, Tensor] | None = None
        self.buffers: tuple[Tensor, Tensor] | None = None

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append (B, H, t, Dh) keys and values; return all of them, (B, H, T, Dh) views."""
        start, self.length = self.length, self.length + k.shape[2]
        if self.buffers is None or self.length > self.buffers[0].shape[2]:
            self._grow(k, v, start)
        assert self.buffers is not None
        for buffer, new in zip(self.buffers, (k, v), strict=True):
            buffer[:, :, start : self.length] = new
        return self.buffers[0][:, :, : self.length], self.buffers[1][:, :, : self.length]

    def _grow(self, k: Tensor, v: Tensor, filled: int) -> None:
        capacity = max(2 * filled, self.length, 32)
        grown = tuple(x.new_empty(*x.shape[:2], capacity, x.shape[3]) for x in (k, v))
        if self.buffers is not None:
            for new, old in zip(grown, self.buffers, strict=True):
                new[:, :, :filled] = old[:, :, :filled]
        self.buffers = (grown[0], grown[1])

    def project_once(self, project: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        """Keys and values of the memory: computed at the first step, remembered after."""
        if self.memory is None:
            k, v = project()
            self.memory = k.contiguous(), v.contiguous()  # by head, as each step reads them
        return self.memory

    def reorder(self, rows: Tensor, sources: Tensor | None) -> None:
        """Keep batch rows `rows`, in that order, and memories `sources`; None keeps all."""
        if self.buffers is not None:
            k, v = self.buffers
            self.buffers = k.index_select(0, rows), v.index_select(0, rows)
        if self.memory is not None and sources is not None:
            k, v = self.memory
            self.memory = k.index_select(0, sources), v.index_select(0, sources)


class KVCache:
    """What a model has seen so far: keys and values of each layer, and which tokens were real.

    It is of no use after a call that was refused, which may have been counted already.
    """

    layer_class = LayerCache

    def __init__(self) -> None:
        self.length = 0
        self.keys: Tensor | None = None
        self.documents: Tensor | None = None
        self.layers: list[LayerCache] = []

    def layer(self, index: int) -> LayerCache:
        """The share of layer `index`, made at its first use."""
        while len(self.layers) <= index:
            self.layers.append(self.layer_class())
        return self.layers[index]

    def advance(self, ids: Tensor, keys: Tensor | None, documents: Tensor | None) -> None:
        """Take note of new tokens `ids` (B, t): their padding and documents, each (B, t)."""
        past = ids.new_ones(ids.shape[0], self.length, dtype=torch.bool)
        if keys is not None or self.keys is not None:
            old = past if self.keys is None else self.keys
            new = torch.ones_like(ids, dtype=torch.bool) if keys is None else keys
            self.keys = torch.cat([old, new], dim=1)
        if documents is not None or self.documents is not None:
            # New tokens without a number go on with the last document, as decoding does.
            old = past.long() * 0 if self.documents is None else self.documents
            new = old[:, -1:].expand_as(ids) if documents is None else documents
            self.documents = torch.cat([old, new], dim=1)
        self.length += ids.shape[1]

    def reorder(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Keep batch rows `rows` (int64) in every layer: beams, or finished sentences dropped.

        Args:
            rows: Which rows go on, in their new order; they may repeat.
            sources: Which memories stay; None is for one memory a row, which moves with it. Else
                a memory serves as many rows, one after the other, as there are for each.
        """
        sources = rows if sources is None else sources
        kept = None if self._all_memories(sources) else sources
        self.keys = None if self.keys is None else self.keys.index_select(0, rows)
        self.documents = None if self.documents is None else self.documents.index_select(0, rows)
        for layer in self.layers:
            layer.reorder(rows, kept)

    def _all_memories(self, sources: Tensor) -> bool:
        """Whether `sources` are all that there are, as they are (asked once for all layers)."""
        memory = self.layers[0].memory if self.layers else None
        if memory is None or len(memory[0]) != len(sources):
            return False
        return torch.equal(sources, torch.arange(len(sources), device=sources.device))


def look_back(
    ids: Tensor, keys: Tensor | None, documents: Tensor | None, cache: KVCache | None, causal: bool
) -> tuple[Mask, Tensor | slice]:
    """Mask and positions of new tokens `ids` (B, t), with what a cache remembers before them.

    Raises:
        InputError: `keys` are not those of the new tokens alone.
    """
    k_len = ids.shape[1]
    if keys is not None and keys.shape[-1] != k_len:
        new = " new" if cache is not None else ""
        raise InputError(f"a mask of {keys.shape[-1]} places does not fit {k_len}{new} tokens")
    if cache is not None:
        cache.advance(ids, keys, documents)
        keys, documents, k_len = cache.keys, cache.documents, cache.length
    mask = Mask(causal=causal, keys=keys, documents=documents)
    return mask, count_positions(keys, documents, ids.shape[1], k_len)
