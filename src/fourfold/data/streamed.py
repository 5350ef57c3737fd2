"""Text that outgrows a disk: encoded once, kept elsewhere, and read chunk by chunk.

Legend: B rows, T tokens of a row.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fourfold.core.errors import InputError
from fourfold.data.batch import CausalBatch
from fourfold.data.chunk_cache import ChunkCache
from fourfold.data.datamodule import BatchDataset
from fourfold.data.token_chunks import TOKENIZER, TokenChunks
from fourfold.data.tokenized import TokenizedData
from fourfold.data.tokenizer import Tokenizer
from fourfold.data.tokenizer_training import TokenizerConfig
from fourfold.data.windows import WindowPlan
from fourfold.losses import IGNORED


class ChunkOrder(WindowPlan):
    """A `WindowPlan` that knows which chunks it is of."""

    def __init__(self, chunks: TokenChunks, block_size: int, **plan: Any) -> None:
        # The first id of a chunk has nothing before it; every other one is a target once.
        super().__init__(-(-np.maximum(chunks.n_tokens - 1, 0) // block_size), **plan)
        named = zip(chunks.names, chunks.n_bytes.tolist(), strict=True)
        self.content = repr([block_size, *named]).encode()

    def fingerprint(self) -> str:
        """Names, sizes and order of the chunks, and how rows are cut out of them."""
        order = super().fingerprint().encode()
        return hashlib.blake2b(order + self.content, digest_size=8).hexdigest()


class StreamedBlocks(BatchDataset):
    """Blocks of `block_size` targets that cover each chunk; the last one of a chunk may be shorter.

    Args:
        chunks: the ids.
        block_size: T.
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
        block_size: int,
        tokenizer: Tokenizer,
        *,
        mark_documents: bool = False,
        **plan: Any,
    ) -> None:
        self.chunks, self.block_size, self.mark_documents = chunks, block_size, mark_documents
        self.eos_id, self.vocab_size = tokenizer.eos_id, tokenizer.vocab_size
        self.plan = ChunkOrder(chunks, block_size, **plan)
        needed = int(np.sort(chunks.n_bytes)[-self.plan.window :].sum())
        if chunks.remote and needed > chunks.cache.limit:
            raise InputError(
                f"{self.plan.window} chunks of {chunks.place}, among which rows are shuffled, take"
                f" {needed / 1e9:.3g} GB, more than cache_gb={chunks.cache.limit / 1e9:g}: allow"
                " more, or make `window` smaller."
            )

    @property
    def longest(self) -> int:
        return self.block_size

    def batch(self, index: np.ndarray, epoch: int, position: int) -> CausalBatch:
        tokens, counts = self._read(index)  # (B, T+1), (B,)
        unused = np.arange(self.block_size) >= counts[:, None] - 1
        ids = torch.from_numpy(tokens[:, :-1])
        targets = torch.from_numpy(np.where(unused, IGNORED, tokens[:, 1:]))
        # A document's EOS is its end as a target, and what the next one follows as an input.
        documents = (ids == self.eos_id).cumsum(1) if self.mark_documents else None
        return CausalBatch(ids, targets, documents, epoch=epoch, position=position)

    def _read(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The ids of rows, (B, T+1), filled up with EOS, and how many they are, (B,)."""
        tokens = np.full((len(index), self.block_size + 1), self.eos_id, np.int64)
        counts = np.zeros(len(index), np.int64)
        places = np.searchsorted(self.plan.firsts, index, side="right") - 1
        for chunk in np.unique(places).tolist():
            rows = np.flatnonzero(places == chunk)
            begins = (index[rows] - self.plan.firsts[chunk]) * self.block_size
            found = self.chunks.read(chunk, begins.tolist(), self.block_size + 1)
            for row, ids in zip(rows, found, strict=True):
                tokens[row, : len(ids)], counts[row] = ids, len(ids)
                if int(ids.max()) >= self.vocab_size or int(ids.min()) < 0:
                    raise InputError(
                        f"{self.chunks.place}/{self.chunks.names[chunk]} holds ids up to"
                        f" {ids.max()}, but the tokenizer has {self.vocab_size} entries."
                    )
        return tokens, counts


class StreamedTextData(TokenizedData):
    """Encoded text in chunks, in a folder or far away, whose next token is to be predicted.

    `scripts/stream_text.py` makes the chunks, or `litdata.optimize` with a `TokensLoader`. Every
    machine reads all of them once an epoch, and keeps `cache_gb` of them.

    Args:
        train: folder or address (s3://, gs://, azure://, hf://) with an index.json; a local folder
            is read in place.
        val: as `train`.
        test: as `val`.
        tokenizer: its file; without one, the tokenizer.json beside the training chunks.
        block_size: tokens of a row.
        batch_size: rows.
        window: chunks that are open at a time, among which rows are shuffled.
        mark_documents: keep documents of one row apart by `batch.documents`.
        cache: folder for copies of chunks, shared by all processes of a machine.
        cache_gb: 10^9 bytes that it may take; two windows of chunks let no chunk come twice.
        seed: decides the order, together with the epoch.
        num_workers: processes that prepare batches.

    Raises:
        InputError: (on setup) an index is missing or broken, or an option is wrong.
    """

    batch_class = CausalBatch

    def __init__(
        self,
        train: str | None = None,
        val: str | None = None,
        test: str | None = None,
        tokenizer: TokenizerConfig = TokenizerConfig(),  # noqa: B008 (frozen)
        block_size: int = 1024,
        batch_size: int = 32,
        window: int = 8,
        mark_documents: bool = False,
        cache: str = "~/.cache/fourfold/chunks",
        cache_gb: float = 10.0,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__(tokenizer, seed, num_workers)
        if min(block_size, batch_size, window) < 1 or cache_gb <= 0:
            raise InputError(
                f"Cannot make rows with block_size={block_size}, batch_size={batch_size},"
                f" window={window} and cache_gb={cache_gb}."
            )
        parts = {"train": train, "val": val, "test": test}
        self.parts = {name: place for name, place in parts.items() if place}
        self.block_size, self.batch_size, self.window = block_size, batch_size, window
        self.mark_documents = mark_documents
        self.cache = ChunkCache(Path(cache).expanduser(), int(cache_gb * 1e9))

    def read(self) -> dict[str, TokenChunks]:
        return {name: TokenChunks(place, self.cache) for name, place in self.parts.items()}

    def training_texts(self, raw: TokenChunks) -> Sequence[str]:
        raise AssertionError("chunks hold no text")

    def build(self) -> dict[str, BatchDataset]:
        """Reads the indices; the tokenizer is the checkpoint's, the file's or the chunks' own."""
        if self._tokenizer is None and self._config.file is None:
            if "train" not in self.parts:
                raise InputError("StreamedTextData needs `train`, or a tokenizer.file.")
            chunks = TokenChunks(self.parts["train"], self.cache)
            where = f"{chunks.place}/{TOKENIZER}"
            self._tokenizer = Tokenizer.from_str(chunks.read_text(TOKENIZER), where)
        return super().build()

    def encode(self, name: str, raw: TokenChunks, tokenizer: Tokenizer) -> BatchDataset:
        return StreamedBlocks(
            raw,
            self.block_size,
            tokenizer,
            mark_documents=self.mark_documents,
            window=self.window,
            max_rows=self.batch_size,
            seed=self.seed,
            shuffle=name == "train",
        )
