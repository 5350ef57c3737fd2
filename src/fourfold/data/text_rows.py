"""What a row is for a causal language model: a block of a stream, a random crop, or a document.

Legend: B rows, T tokens of a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fourfold.data.batch import CausalBatch
from fourfold.data.datamodule import BatchDataset
from fourfold.data.noise import integers
from fourfold.data.ragged import Ragged
from fourfold.data.sampler import Plan
from fourfold.data.stream import Stream
from fourfold.losses import IGNORED


class BlockDataset(BatchDataset):
    """Blocks of `block_size` tokens that cover a stream, or as many cut out at random places.

    Args:
        stream: the tokens.
        block_size: T.
        context: tokens a block repeats from the one before, seen but not counted.
        crops: random places, new in every epoch, instead of a cover.
        mark_documents: tell the model which tokens belong to one document.
        seed: decides the crops, together with epoch and row.
        plan: options of `Plan`.
    """

    def __init__(
        self,
        stream: Stream,
        block_size: int,
        *,
        context: int = 0,
        crops: bool = False,
        mark_documents: bool = False,
        seed: int = 0,
        **plan: Any,
    ) -> None:
        self.stream, self.block_size, self.context = stream, block_size, context
        self.crops, self.mark_documents, self.seed = crops, mark_documents, seed
        n_rows = max(1, -(-(len(stream) - context) // (block_size - context)))
        self.plan = Plan(np.ones(n_rows, np.int64), seed=seed, **plan)

    @property
    def longest(self) -> int:
        return self.block_size

    def batch(self, index: np.ndarray, epoch: int, position: int) -> CausalBatch:
        n_targets = len(self.stream)
        if self.crops:
            begins = integers(self.seed, epoch, index, n_targets - self.block_size + 1)
        else:
            begins = index * (self.block_size - self.context)
        places = begins[:, None] + np.arange(self.block_size)  # (B, T)
        ends = np.minimum(begins + self.block_size, n_targets)
        counted = begins + np.where(begins > 0, self.context, 0)
        ids = self.stream.ids[np.minimum(places, n_targets)]
        targets = self.stream.ids[np.minimum(places + 1, n_targets)]
        unused = (places >= n_targets) | (places < counted[:, None])
        targets = np.where(unused, IGNORED, targets)
        documents = None
        if self.mark_documents:
            documents = torch.from_numpy(self.stream.document(places))
        return CausalBatch(
            torch.from_numpy(ids.astype(np.int64)),
            torch.from_numpy(targets.astype(np.int64)),
            documents,
            *self.stream.measure(counted, ends),
            epoch,
            position,
        )


class DocumentDataset(BatchDataset):
    """One document a row, from EOS to EOS.

    Padding is on the right, where causal attention never looks, so there is no mask.

    Args:
        documents: the encoded documents.
        n_bytes: (rows,) bytes of their text.
        n_words: (rows,) words of their text.
        eos_id: what a document follows and ends with.
        plan: options of `Plan`.
    """

    def __init__(
        self,
        documents: Ragged,
        n_bytes: np.ndarray,
        n_words: np.ndarray,
        eos_id: int,
        **plan: Any,
    ) -> None:
        self.documents = documents.wrap(before=eos_id, after=eos_id)
        self.n_bytes, self.n_words, self.eos_id = n_bytes, n_words, eos_id
        self.plan = Plan(self.documents.lengths - 1, **plan)

    def batch(self, index: np.ndarray, epoch: int, position: int) -> CausalBatch:
        ids, mask = self.documents.padded(index, self.eos_id)  # (B, T+1)
        targets = ids[:, 1:].masked_fill(~mask[:, 1:], IGNORED)
        n_bytes, n_words = int(self.n_bytes[index].sum()), int(self.n_words[index].sum())
        return CausalBatch(ids[:, :-1], targets, None, n_bytes, n_words, epoch, position)
