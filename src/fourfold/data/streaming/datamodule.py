"""DataModules that stream text larger than the disk, for causal and masked language models.

The text is encoded once into chunks of token ids, which stay in an object store. litdata writes and
downloads the chunks. This package has its own reader, because litdata's reader does not resume
exactly when its cache is smaller than the data, and because the order of litdata's rows depends on
the number of workers and ranks. The order of this package depends only on seed and epoch. The epoch
and the number of its trained batches are therefore enough to resume.

Shapes: B rows (training examples) of a batch, T tokens of a row.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fourfold.core.validation import check_positive, check_range
from fourfold.data.loading.batches import CausalBatch, MaskedBatch
from fourfold.data.loading.datamodule import BatchedDataset
from fourfold.data.streaming.chunks import TOKENIZER_FILE, ChunkCache, ChunkedRows, TokenChunks
from fourfold.data.text.base import TextDataModule
from fourfold.data.text.masked_lm import MIN_LEN
from fourfold.data.text.masking import Masking, MaskingConfig, masked_batch
from fourfold.losses import IGNORE_INDEX
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig


class StreamedBlocks(ChunkedRows):
    """Dataset for causal language models whose rows (examples) have T consecutive ids as targets.

    The inputs of a row are T ids, which begin one id before the targets. Every id of a chunk is a
    target once, except the first id, which has no predecessor.
    """

    overlap = 1

    def batch(self, rows: np.ndarray, epoch: int, position: int) -> CausalBatch:
        tokens, counts = self.read(rows)  # (B, T+1), (B,)
        is_padding = np.arange(self.step) >= counts[:, None] - 1
        ids = torch.from_numpy(tokens[:, :-1])
        targets = torch.from_numpy(np.where(is_padding, IGNORE_INDEX, tokens[:, 1:]))
        documents = None
        if self.block_cross_document_attention:
            # As an input, the EOS of a document belongs to the next document.
            documents = (ids == self.tokenizer.eos_id).cumsum(1)
        return CausalBatch(ids, targets, documents, epoch=epoch, position=position)


class StreamedMaskedRows(ChunkedRows):
    """Dataset for masked language models whose rows (examples) are BOS, T - 2 ids, EOS.

    The ids are consecutive ids of a chunk. A row may begin and end inside a sentence. The tokenizer
    of `masking` must be the tokenizer that produced the ids of the chunks.
    """

    def __init__(self, chunks: TokenChunks, max_len: int, masking: Masking, **options: Any) -> None:
        super().__init__(chunks, max_len - 2, masking.tokenizer, **options)
        self.masking = masking
        self.max_length = max_len

    def batch(self, rows: np.ndarray, epoch: int, position: int) -> MaskedBatch:
        tokens, counts = self.read(rows)  # (B, T-2), (B,)
        ids = np.pad(tokens, ((0, 0), (1, 1)), constant_values=self.tokenizer.eos_id)  # (B, T)
        ids[:, 0] = self.tokenizer.bos_id
        mask = np.arange(ids.shape[1]) < counts[:, None] + 2
        ids[~mask] = self.tokenizer.pad_id
        block = self.block_cross_document_attention
        return masked_batch(self.masking, ids, mask, rows, epoch, position, block)


class StreamedTextDataModule(TextDataModule):
    """Base class of DataModules for text that is stored as chunks of token ids.

    The chunks are written by `scripts/tools/stream_text.py`, or by `litdata.optimize` with a
    `TokensLoader`. Every machine reads all chunks once per epoch, and keeps copies of chunks with a
    total size of up to `max_cache_gb`.

    Args:
        train: Folder or address (s3://, gs://, azure://, hf://) of the training chunks, with an
            index.json. A local folder is read without copies.
        val: Folder or address of the validation chunks; None means no validation.
        test: Folder or address of the test chunks; None means no test.
        tokenizer: Tokenizer to load, with the path in `tokenizer.file`. By default the tokenizer is
            tokenizer.json in the folder of the training chunks.
        batch_size: Number of rows (examples) in a batch.
        shuffle_chunks: Number of chunks whose rows are shuffled together.
        block_cross_document_attention: Prevent attention between documents of one row.
        cache: Folder for copies of chunks, which all processes of a machine share.
        max_cache_gb: Maximum size of the copies in 10^9 bytes. If the cache has space for `2 *
            shuffle_chunks` chunks, no chunk is downloaded twice in an epoch.
        options: Arguments of `ResumableDataModule`.

    Raises:
        InputError: If an option is invalid. `setup` raises the error if an index is missing or
            invalid, or if the chunks were encoded with another tokenizer.
    """

    def __init__(
        self,
        train: str | None = None,
        val: str | None = None,
        test: str | None = None,
        tokenizer: TokenizerConfig = TokenizerConfig(),  # noqa: B008 (frozen)
        batch_size: int = 32,
        shuffle_chunks: int = 8,
        block_cross_document_attention: bool = False,
        cache: str = "~/.cache/fourfold/chunks",
        max_cache_gb: float = 10.0,
        **options: Any,
    ) -> None:
        super().__init__(train=train, val=val, test=test, tokenizer=tokenizer, **options)
        check_positive("batch_size", batch_size)
        check_positive("shuffle_chunks", shuffle_chunks)
        check_range("max_cache_gb", max_cache_gb, above=0.0)
        self.cache = ChunkCache(Path(cache).expanduser(), int(max_cache_gb * 1e9))
        self.row_options: dict[str, Any] = {
            "block_cross_document_attention": block_cross_document_attention,
            "shuffle_chunks": shuffle_chunks,
            "max_rows": batch_size,
            "seed": self.seed,
        }

    def read(self) -> dict[str, TokenChunks]:
        """Read the index.json of each split."""
        addresses = self.split_sources.items()
        return {name: TokenChunks(address, self.cache) for name, address in addresses if address}

    def training_texts(self, raw: TokenChunks) -> Sequence[str]:
        raise AssertionError("chunks have no text, and their tokenizer is never trained")

    def _make_tokenizer(self, raw: dict[str, Any]) -> Tokenizer:
        if self._tokenizer_config.file is not None or "train" not in raw:
            return super()._make_tokenizer(raw)
        chunks: TokenChunks = raw["train"]
        text = chunks.read_text(TOKENIZER_FILE)
        return Tokenizer.from_str(text, f"{chunks.address}/{TOKENIZER_FILE}")


class StreamedCausalTextData(StreamedTextDataModule):
    """Streamed text for causal language models; the target of each token is the next token.

    Args:
        block_size: Number of tokens of a row (training example).
        options: Arguments of `StreamedTextDataModule`.

    Example:
        >>> data = StreamedCausalTextData(512, train="s3://bucket/tokens", batch_size=8)
        >>> data.block_size, data.split_sources["train"]
        (512, 's3://bucket/tokens')
    """

    batch_class = CausalBatch

    def __init__(self, block_size: int = 1024, **options: Any) -> None:
        super().__init__(**options)
        check_positive("block_size", block_size)
        self.block_size = block_size

    def encode(self, name: str, raw: TokenChunks, tokenizer: Tokenizer) -> BatchedDataset:
        shuffle = name == "train"
        return StreamedBlocks(raw, self.block_size, tokenizer, shuffle=shuffle, **self.row_options)


class StreamedMaskedTextData(StreamedTextDataModule):
    """Streamed text for masked language models.

    Validation and test use the same masks in every epoch, so that their losses can be compared.

    Args:
        max_len: Number of tokens of a row (training example), special tokens included. Rows begin
            and end anywhere in the text.
        masking: Options of masking, such as the share of masked tokens.
        options: Arguments of `StreamedTextDataModule`.

    Example:
        >>> data = StreamedMaskedTextData(512, MaskingConfig(0.3), train="s3://bucket/tokens")
        >>> data.max_len, data.masking.mlm_probability
        (512, 0.3)
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
        check_range("max_len", max_len, minimum=MIN_LEN)
        self.max_len = max_len
        self.masking = masking

    def encode(self, name: str, raw: TokenChunks, tokenizer: Tokenizer) -> BatchedDataset:
        masking = Masking(self.masking, tokenizer, self.seed)
        shuffle = name == "train"
        return StreamedMaskedRows(raw, self.max_len, masking, shuffle=shuffle, **self.row_options)
