"""Text that outgrows a disk: encoded once, kept elsewhere, and read chunk by chunk.

Legend: B rows, T tokens of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fourfold.core.errors import InputError
from fourfold.data.batch import CausalBatch
from fourfold.data.chunk_cache import ChunkCache
from fourfold.data.chunk_rows import ChunkRows
from fourfold.data.datamodule import BatchDataset
from fourfold.data.token_chunks import TOKENIZER, TokenChunks
from fourfold.data.tokenized import TokenizedData
from fourfold.data.tokenizer import Tokenizer
from fourfold.data.tokenizer_training import TokenizerConfig
from fourfold.losses import IGNORED


class StreamedBlocks(ChunkRows):
    """Blocks of T targets that cover each chunk.

    Args:
        chunks: the ids.
        block_size: T.
        tokenizer: what they are ids of.
        options: of `ChunkRows`.

    Raises:
        InputError: as `ChunkRows`.
    """

    def __init__(
        self, chunks: TokenChunks, block_size: int, tokenizer: Tokenizer, **options: Any
    ) -> None:
        # The first id of a chunk has nothing before it; every other one is a target once.
        super().__init__(chunks, block_size, 1, tokenizer, **options)

    @property
    def longest(self) -> int:
        return self.step

    def batch(self, index: np.ndarray, epoch: int, position: int) -> CausalBatch:
        tokens, counts = self.read(index)  # (B, T+1), (B,)
        unused = np.arange(self.step) >= counts[:, None] - 1
        ids = torch.from_numpy(tokens[:, :-1])
        targets = torch.from_numpy(np.where(unused, IGNORED, tokens[:, 1:]))
        # A document's EOS is its end as a target, and what the next one follows as an input.
        marks = self.mark_documents
        documents = (ids == self.tokenizer.eos_id).cumsum(1) if marks else None
        return CausalBatch(ids, targets, documents, epoch=epoch, position=position)


class StreamedData(TokenizedData):
    """Encoded text in chunks, in a folder or far away.

    `scripts/stream_text.py` makes the chunks, or `litdata.optimize` with a `TokensLoader`. Every
    machine reads all of them once an epoch, and keeps `cache_gb` of them.

    Args:
        train: folder or address (s3://, gs://, azure://, hf://) with an index.json; a local folder
            is read in place.
        val: as `train`.
        test: as `val`.
        tokenizer: its file; without one, the tokenizer.json beside the training chunks.
        batch_size: rows.
        window: chunks that are open at a time, among which rows are shuffled.
        mark_documents: keep documents of one row apart by `batch.documents`.
        cache: folder for copies of chunks, shared by all processes of a machine.
        cache_gb: 10^9 bytes that it may take; two windows of chunks let no chunk come twice.
        seed: decides order and masks, together with the epoch.
        num_workers: processes that prepare batches.

    Raises:
        InputError: (on setup) an index is missing or broken, or an option is wrong.
    """

    def __init__(
        self,
        train: str | None = None,
        val: str | None = None,
        test: str | None = None,
        tokenizer: TokenizerConfig = TokenizerConfig(),  # noqa: B008 (frozen)
        batch_size: int = 32,
        window: int = 8,
        mark_documents: bool = False,
        cache: str = "~/.cache/fourfold/chunks",
        cache_gb: float = 10.0,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__(tokenizer, seed, num_workers)
        if min(batch_size, window) < 1 or cache_gb <= 0:
            raise InputError(
                f"Cannot make rows with batch_size={batch_size}, window={window} and"
                f" cache_gb={cache_gb}."
            )
        parts = {"train": train, "val": val, "test": test}
        self.parts = {name: place for name, place in parts.items() if place}
        self.batch_size, self.window = batch_size, window
        self.mark_documents = mark_documents
        self.cache = ChunkCache(Path(cache).expanduser(), int(cache_gb * 1e9))

    def read(self) -> dict[str, TokenChunks]:
        return {name: TokenChunks(place, self.cache) for name, place in self.parts.items()}

    def training_texts(self, raw: TokenChunks) -> Sequence[str]:
        raise AssertionError("chunks hold no text")

    def build(self) -> dict[str, BatchDataset]:
        """Reads the indices; the tokenizer is the checkpoint's, the file's or the chunks' own.

        Raises:
            InputError: the chunks hold ids of another one.
        """
        if self._tokenizer is None and self._config.file is None:
            if "train" not in self.parts:
                raise InputError(f"{type(self).__name__} needs `train`, or a tokenizer.file.")
            chunks = TokenChunks(self.parts["train"], self.cache)
            where = f"{chunks.place}/{TOKENIZER}"
            self._tokenizer = Tokenizer.from_str(chunks.read_text(TOKENIZER), where)
        splits = super().build()
        for split in splits.values():
            assert isinstance(split, ChunkRows)
            split.chunks.refuse_other(split.tokenizer)
        return splits

    def rows(self, name: str) -> dict[str, Any]:
        """Options of the `ChunkRows` of the split called `name`."""
        return {
            "mark_documents": self.mark_documents,
            "window": self.window,
            "max_rows": self.batch_size,
            "seed": self.seed,
            "shuffle": name == "train",
        }


class StreamedTextData(StreamedData):
    """Streamed text whose next token is to be predicted.

    Args:
        block_size: tokens of a row.
        options: of `StreamedData`.

    Raises:
        InputError: as `StreamedData`.
    """

    batch_class = CausalBatch

    def __init__(self, block_size: int = 1024, **options: Any) -> None:
        super().__init__(**options)
        if block_size < 1:
            raise InputError(f"Cannot make rows with block_size={block_size}.")
        self.block_size = block_size

    def encode(self, name: str, raw: TokenChunks, tokenizer: Tokenizer) -> BatchDataset:
        return StreamedBlocks(raw, self.block_size, tokenizer, **self.rows(name))
