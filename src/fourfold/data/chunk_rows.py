"""Rows that are cut out of chunks of token ids, in an order that needs few chunks at a time.

Legend: B rows, W ids of a row.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from fourfold.core.errors import InputError
from fourfold.data.datamodule import BatchDataset
from fourfold.data.token_chunks import TokenChunks
from fourfold.data.tokenizer import Tokenizer
from fourfold.data.windows import WindowPlan


class ChunkOrder(WindowPlan):
    """A `WindowPlan` that knows which chunks it is of.

    Args:
        chunks: the ids.
        step: ids from the begin of one row to that of the next.
        overlap: ids at the end of a row that begin the next one, too.
        plan: options of `WindowPlan`.
    """

    def __init__(self, chunks: TokenChunks, step: int, overlap: int, **plan: Any) -> None:
        super().__init__(-(-np.maximum(chunks.n_tokens - overlap, 0) // step), **plan)
        named = zip(chunks.names, chunks.n_bytes.tolist(), strict=True)
        self.content = repr([step, *named]).encode()

    def fingerprint(self) -> str:
        """Names, sizes and order of the chunks, and how rows are cut out of them."""
        order = super().fingerprint().encode()
        return hashlib.blake2b(order + self.content, digest_size=8).hexdigest()


class ChunkRows(BatchDataset):
    """Rows of W ids that cover each chunk; the last one of a chunk may be shorter.

    Args:
        chunks: the ids.
        step: as of `ChunkOrder`; W is step + overlap.
        overlap: likewise.
        tokenizer: what they are ids of.
        mark_documents: tell the model which tokens belong to one document.
        plan: options of `WindowPlan`.

    Raises:
        InputError: the cache is smaller than the chunks of a window.
    """

    plan: ChunkOrder

    def __init__(
        self,
        chunks: TokenChunks,
        step: int,
        overlap: int,
        tokenizer: Tokenizer,
        *,
        mark_documents: bool = False,
        **plan: Any,
    ) -> None:
        self.chunks, self.step, self.width = chunks, step, step + overlap
        self.tokenizer, self.mark_documents = tokenizer, mark_documents
        self.plan = ChunkOrder(chunks, step, overlap, **plan)
        needed = int(np.sort(chunks.n_bytes)[-self.plan.window :].sum())
        if chunks.remote and needed > chunks.cache.limit:
            raise InputError(
                f"{self.plan.window} chunks of {chunks.place}, among which rows are shuffled, take"
                f" {needed / 1e9:.3g} GB, more than cache_gb={chunks.cache.limit / 1e9:g}: allow"
                " more, or make `window` smaller."
            )

    def read(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The ids of rows, (B, W), filled up with EOS, and how many they are, (B,).

        Raises:
            InputError: a chunk holds ids that the tokenizer has not.
        """
        tokens = np.full((len(index), self.width), self.tokenizer.eos_id, np.int64)
        counts = np.zeros(len(index), np.int64)
        places = np.searchsorted(self.plan.firsts, index, side="right") - 1
        for chunk in np.unique(places).tolist():
            rows = np.flatnonzero(places == chunk)
            begins = (index[rows] - self.plan.firsts[chunk]) * self.step
            found = self.chunks.read(chunk, begins.tolist(), self.width)
            for row, ids in zip(rows, found, strict=True):
                tokens[row, : len(ids)], counts[row] = ids, len(ids)
                if int(ids.max()) >= self.tokenizer.vocab_size or int(ids.min()) < 0:
                    raise InputError(
                        f"{self.chunks.place}/{self.chunks.names[chunk]} holds ids up to"
                        f" {ids.max()}, but the tokenizer has {self.tokenizer.vocab_size} entries."
                    )
        return tokens, counts
