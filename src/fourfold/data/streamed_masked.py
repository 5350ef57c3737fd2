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


class StreamedMaskedRows(ChunkRows):
    """BOS, as many ids of a chunk as fit, EOS; with hidden tokens.

    Rows begin and end wherever they are full, inside a sentence or behind one.

    Args:
        chunks: the ids.
        max_len: T, with BOS and EOS.
        masking: hides tokens.
        options: of `ChunkRows`.

    Raises:
        InputError: as `ChunkRows`.
    """

    def __init__(self, chunks: TokenChunks, max_len: int, masking: Masking, **options: Any) -> None:
        super().__init__(chunks, max_len - 2, 0, masking.tokenizer, **options)
        self.masking = masking

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
        max_len: tokens of a row, with special ones; it begins and ends wherever it is full.
        masking: how tokens are hidden.
        options: of `StreamedData`.

    Raises:
        InputError: as `StreamedData`; the tokenizer has no mask token.
    """

    batch_class = MaskedBatch

    needs_mask = True

    def __init__(
        self,
        max_len: int = 512,
        masking: MaskingConfig = MaskingConfig(),  # noqa: B008 (frozen)
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if max_len < 5:
            raise InputError(f"Cannot make rows with max_len={max_len}.")
        self.max_len, self.masking = max_len, masking

    def encode(self, name: str, raw: TokenChunks, tokenizer: Tokenizer) -> BatchDataset:
        masking = Masking(self.masking, tokenizer, self.seed)
        return StreamedMaskedRows(raw, self.max_len, masking, **self.rows(name))
