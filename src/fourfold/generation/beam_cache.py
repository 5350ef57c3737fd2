"""A cache for beams: what the hypotheses of a sentence have written lies together and stays there.

Keys and values are not copied when a hypothesis is continued twice, or not at all: each notes which
of the sentence's places are its own past, and attends to those. So its mask is its ancestry.

Shapes: B sentences, K hypotheses of each (1 at first), N = B K rows, H heads, P places of a
sentence, Dh head width.
"""

import torch
from torch import Tensor, nn

from fourfold.core.attention import as_queries
from fourfold.core.cache import KVCache, LayerCache


class BeamLayer(LayerCache):
    """One layer's share of a `BeamCache`: rows are sentences."""

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append (N, H, 1, Dh) keys and values; return all of each sentence, (B, H, P, Dh)."""
        if self.buffers is not None:
            k, v = (as_queries(x, len(self.buffers[0])) for x in (k, v))
        return super().extend(k, v)


class BeamCache(KVCache):
    """What a model has seen, with K new places of a sentence each step, and who sees them.

    `keys` (N, P) are the places of each row's own past, `length` is P. It serves models that take a
    token's position from the mask, one token a row after the first step.
    """

    layer_class = BeamLayer

    def __init__(self) -> None:
        super().__init__()
        self.sentences = 0  # B

    def advance(self, ids: Tensor, keys: Tensor | None, documents: Tensor | None) -> None:
        """Take note of the first tokens `ids` (B, t), then of one more of each row (N, 1)."""
        assert documents is None, "packed documents are not continued"
        if self.keys is None:
            self.sentences = len(ids)
            self.keys = torch.ones_like(ids, dtype=torch.bool) if keys is None else keys
        else:  # of a step's places each row sees its own
            own = torch.eye(len(ids) // self.sentences, dtype=torch.bool, device=ids.device)
            self.keys = torch.cat([self.keys, own.repeat(self.sentences, 1)], dim=1)
        self.length = self.keys.shape[1]

    def reorder(self, rows: Tensor, sources: Tensor | None = None) -> None:
        """Rows `rows` (int64) go on, as many of each sentence; what others wrote stays.

        Args:
            rows: Which rows, sentence by sentence; they may repeat.
            sources: The sentences that they are of, one after the other; None: to be found out.
        """
        if self.keys is None:
            return
        if sources is None:
            sources = torch.unique_consecutive(rows // (len(self.keys) // self.sentences))
        self.keys = self.keys.index_select(0, rows)
        if not torch.equal(sources, torch.arange(self.sentences, device=sources.device)):
            self.sentences = len(sources)
            for layer in self.layers:
                layer.reorder(sources, sources)


def beam_cache(model: nn.Module) -> KVCache:
    """The cache for beams of a model: the plain one where places have to be in order."""
    return KVCache() if getattr(model, "counts_places", False) else BeamCache()
