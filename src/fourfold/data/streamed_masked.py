"""Streamed text for masked language models.

Legend: B rows, T tokens of a row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fourfold.core.errors import InputError
from fourfold.data.batch import MaskedBatch
from fourfold.data.chunk_rows import ChunkRows
from fourfold.data.datamodule import BatchDataset
from fourfold.data.masked_rows import masked_batch
from fourfold.data.masking import Masking, MaskingConfig
from fourfold.data.streamed import StreamedData
from fourfold.data.token_chunks import TokenChunks
from fourfold.data.tokenizer import Tokenizer
from fourfold.data.tokenizer_training import TokenizerConfig


class StreamedMaskedRows(ChunkRows):
    """BOS, as many ids of a chunk as fit, EOS; with hidden tokens.

    Rows begin and end wherever they are full, inside a sentence or behind one.

    Args:
        chunks: the ids.
        max_len: T, with BOS and EOS.
        masking: hides tokens.
        mark_documents: tell the model which tokens belong to one document.
        plan: options of `WindowPlan`.

    Raises:
        InputError: as `ChunkRows`.
    """

    def __init__(
        self,
        chunks: TokenChunks,
        max_len: int,
        masking: Masking,
        *,
        mark_documents: bool = False,
        **plan: Any,
    ) -> None:
        super().__init__(chunks, max_len - 2, 0, masking.tokenizer, **plan)
        self.masking, self.mark_documents = masking, mark_documents

    @property
    def longest(self) -> int:
        return self.width + 2

    def batch(self, index: np.ndarray, epoch: int, position: int) -> MaskedBatch:
        tokens, counts = self.read(index)  # (B, T-2), (B,)
        ids = np.pad(tokens, ((0, 0), (1, 1)), constant_values=self.tokenizer.eos_id)  # (B, T)
        ids[:, 0] = self.tokenizer.bos_id
        mask = np.arange(ids.shape[1]) < counts[:, None] + 2
        ids[~mask] = self.tokenizer.pad_id
        return masked_batch(
            self.masking, ids, mask, index, epoch, position, mark_documents=self.mark_documents
        )


class StreamedMaskedData(StreamedData):
    """Streamed text with hidden tokens; validation and test hide the same ones each time.

    Args:
        train: folder or address (s3://, gs://, azure://, hf://) with an index.json; a local folder
            is read in place.
        val: as `train`.
        test: as `val`.
        tokenizer: its file; without one, the tokenizer.json beside the training chunks.
        max_len: tokens of a row, with special ones; it begins and ends wherever it is full.
        masking: how tokens are hidden.
        batch_size: rows.
        window: chunks that are open at a time, among which rows are shuffled.
        mark_documents: keep documents of one row apart by `batch.documents`.
        cache: folder for copies of chunks, shared by all processes of a machine.
        cache_gb: 10^9 bytes that it may take; two windows of chunks let no chunk come twice.
        seed: decides order and masks, together with the epoch.
        num_workers: processes that prepare batches.

    Raises:
        InputError: (on setup) an index is missing or broken, the tokenizer has no mask token, or an
            option is wrong.
    """

    batch_class = MaskedBatch

    needs_mask = True

    def __init__(
        self,
        train: str | None = None,
        val: str | None = None,
        test: str | None = None,
        tokenizer: TokenizerConfig = TokenizerConfig(),  # noqa: B008 (frozen)
        max_len: int = 512,
        masking: MaskingConfig = MaskingConfig(),  # noqa: B008 (frozen)
        batch_size: int = 32,
        window: int = 8,
        mark_documents: bool = False,
        cache: str = "~/.cache/fourfold/chunks",
        cache_gb: float = 10.0,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__(
            {"train": train, "val": val, "test": test},
            tokenizer, batch_size, window, cache, cache_gb, seed, num_workers,
        )  # fmt: skip
        if max_len < 5:
            raise InputError(f"Cannot make rows with max_len={max_len}.")
        self.max_len, self.masking, self.mark_documents = max_len, masking, mark_documents

    def encode(self, name: str, raw: TokenChunks, tokenizer: Tokenizer) -> BatchDataset:
        return StreamedMaskedRows(
            raw,
            self.max_len,
            Masking(self.masking, tokenizer, self.seed),
            mark_documents=self.mark_documents,
            **self.order(name),
        )
