"""DataModule for causal language modelling, with datasets of blocks and of documents.

Shapes: B rows of a batch (blocks, crops or documents), T tokens of a row.
"""

from dataclasses import KW_ONLY, InitVar, dataclass
from typing import Any, Literal

import numpy as np
import torch

from fourfold.core.validation import check_choice, check_positive, check_range
from fourfold.data.loading.batches import CausalBatch
from fourfold.data.loading.counter_rng import integers
from fourfold.data.loading.datamodule import BatchedDataset
from fourfold.data.loading.length_bucketing import LengthBucketedOrder
from fourfold.data.readers.documents import Documents, DocumentUnit
from fourfold.data.readers.truncation import rows_within_limit
from fourfold.data.text.base import DocumentDataModule, text_data
from fourfold.data.text.packing import TokenStream
from fourfold.data.text.token_cache import map_bin_file
from fourfold.errors import InputError
from fourfold.losses import IGNORE_INDEX
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig


@dataclass(eq=False)
class BlockDataset(BatchedDataset):
    """Dataset of blocks of T consecutive tokens from all documents, concatenated.

    The blocks follow each other, or are crops that begin at random positions. The number of blocks
    in an epoch is the same in both cases.

    Args:
        order: Division of the blocks into batches; its seed is also the seed of the crops.
        context: Number of tokens at the beginning of a block that repeat the end of the previous
            block, as inputs without a target.
        crops: Sample the beginnings of the blocks at random in every epoch.
        block_cross_document_attention: Put the index of each token's document into the batches.
    """

    stream: TokenStream
    block_size: int
    order: LengthBucketedOrder
    context: int = 0
    crops: bool = False
    block_cross_document_attention: bool = False

    @property
    def max_length(self) -> int:
        return self.block_size

    def batch(self, rows: np.ndarray, epoch: int, position: int) -> CausalBatch:
        n_targets = len(self.stream)
        if self.crops:
            begins = integers(self.order.seed, epoch, rows, n_targets - self.block_size + 1)
        else:
            begins = rows * (self.block_size - self.context)
        positions = begins[:, None] + np.arange(self.block_size)  # (B, T)
        ends = np.minimum(begins + self.block_size, n_targets)
        first_targets = begins + np.where(begins > 0, self.context, 0)
        # The ids are unsigned, and IGNORE_INDEX is negative.
        ids, targets = (
            self.stream.ids[np.minimum(at, n_targets)].astype(np.int64)
            for at in (positions, positions + 1)
        )
        ignored = (positions >= n_targets) | (positions < first_targets[:, None])
        targets = np.where(ignored, IGNORE_INDEX, targets)
        documents = None
        if self.block_cross_document_attention:
            numbers = np.searchsorted(self.stream.offsets, positions, side="right") - 1
            documents = torch.from_numpy(numbers)
        return CausalBatch(
            torch.from_numpy(ids),
            torch.from_numpy(targets),
            documents,
            *self.stream.count_bytes_and_words(first_targets, ends),
            epoch,
            position,
        )


@dataclass(eq=False)
class DocumentDataset(BatchedDataset):
    """Dataset in which each row of a batch is one document, with an EOS before and after it.

    The batches need no padding mask: the padding, which is EOS, follows the document, and causal
    attention never sees later positions.

    Args:
        ids: Token ids of all documents, as in `TokenStream`.
        begins: (rows,) index in `ids` of the EOS before each document.
        lengths: (rows,) number of tokens of each document, without EOS.
        sizes: (2, rows) numbers of UTF-8 bytes and of words of each document.
        eos_id: Id of EOS.
        order: Division of the rows into batches.
    """

    ids: np.ndarray
    begins: np.ndarray
    lengths: np.ndarray
    sizes: np.ndarray
    eos_id: int
    order: LengthBucketedOrder

    def batch(self, rows: np.ndarray, epoch: int, position: int) -> CausalBatch:
        lengths = self.lengths[rows, None]
        at = np.arange(lengths.max() + 2)  # (T+1,)
        ids = self.ids[np.minimum(self.begins[rows, None] + at, len(self.ids) - 1)]  # (B, T+1)
        ids = np.where(at <= lengths, ids, self.eos_id).astype(np.int64)
        targets = torch.from_numpy(np.where(at <= lengths + 1, ids, IGNORE_INDEX)[:, 1:])
        n_bytes, n_words = self.sizes[:, rows].sum(1).tolist()
        inputs = torch.from_numpy(ids[:, :-1])
        return CausalBatch(inputs, targets, None, n_bytes, n_words, epoch, position)


@text_data
class CausalTextData(DocumentDataModule):
    """DataModule for causal language models; the target of each token is the next token.

    Each batch has the fields `n_bytes` and `n_words`. Their sums over the batches of a validation
    or test split are the numbers of UTF-8 bytes and of whitespace-separated words in the text. The
    EOS after each document is a target and counts as a token, but not as a byte or a word.

    A split may also be a file NAME.bin with the ids of a tokenizer, as nanoGPT writes them (uint16,
    an EOS after each document). It is mapped as it is, and its bytes and words are not counted.

    Args:
        tokenizer: Tokenizer to train or load; by default a byte-level BPE.
        block_size: Number of tokens in a block or crop. If `batching` is "documents", the maximum
            number of tokens in a document, EOS included.
        batching: Division of the text into examples. With "blocks", the examples are consecutive
            blocks, in which each token is a target once per epoch. With "crops", the training
            examples are the same number of blocks at random positions, as in nanoGPT. Evaluation
            uses consecutive blocks. With "documents", each example is a document, and a batch holds
            documents of similar length.
        eval_context: Number of tokens at the beginning of a validation or test block that repeat
            the end of the previous block, as inputs without a target.

    Example:
        >>> data = CausalTextData(block_size=8, batch_size=4)  # Python's documentation
        >>> batch = data.split("val").batch(np.arange(4), epoch=0, position=1)
        >>> bool((batch.ids[:, 1:] == batch.targets[:, :-1]).all())
        True
    """

    batch_class = CausalBatch

    _: KW_ONLY
    documents: DocumentUnit = "file"
    tokenizer: InitVar[TokenizerConfig] = TokenizerConfig(kind="byte_bpe")
    block_size: int = 128
    batching: Literal["blocks", "crops", "documents"] = "blocks"
    eval_context: int = 0

    def __post_init__(self, tokenizer: TokenizerConfig) -> None:
        super().__post_init__(tokenizer)
        check_choice("batching", self.batching, ["blocks", "crops", "documents"])
        check_positive("block_size", self.block_size)
        check_range("eval_context", self.eval_context, minimum=0, below=self.block_size)

    def read(self) -> dict[str, Any]:
        named = {name: source for name, source in self.split_sources.items() if source is not None}
        is_bin = [isinstance(source, str) and source.endswith(".bin") for source in named.values()]
        if self.source != "files" or not any(is_bin):
            return super().read()
        if not all(is_bin):
            message = f"must each be one .bin file if one of them is, got {list(named.values())}"
            raise InputError(message, option="data.train, data.val and data.test")
        if self._tokenizer_config.file is None:
            message = "must name the tokenizer with which the .bin files were written"
            raise InputError(message, option="data.tokenizer.file")
        check_choice("data.batching", self.batching, ["blocks", "crops"])
        return named

    def encode(self, name: str, raw: Documents | str, tokenizer: Tokenizer) -> BatchedDataset:
        if isinstance(raw, str):
            return self._block_dataset(name, raw, map_bin_file(raw, tokenizer))
        arrays = self.encoded_stream(name, raw, tokenizer)
        stream = TokenStream(*(arrays[key] for key in ("ids", "offsets", "bytes", "words")))
        if self.batching == "documents":
            return self._document_dataset(name, raw, stream, tokenizer.eos_id)
        return self._block_dataset(name, raw, stream)

    def _block_dataset(self, name: str, raw: Documents | str, stream: TokenStream) -> BlockDataset:
        crops = self.batching == "crops" and name == "train"
        if crops and len(stream) < self.block_size:
            file = raw if isinstance(raw, str) else raw.location(0)
            message = f"the training split has {len(stream)} tokens, fewer than"
            raise InputError(f"{message} block_size={self.block_size}", file=file)
        context = 0 if name == "train" else self.eval_context
        lengths = np.ones(stream.n_blocks(self.block_size, context), np.int64)
        order = self.batch_order(name, lengths, max_rows=self.batch_size)
        block = self.block_cross_document_attention
        return BlockDataset(stream, self.block_size, order, context, crops, block)

    def _document_dataset(
        self, name: str, raw: Documents, stream: TokenStream, eos_id: int
    ) -> DocumentDataset:
        limit = self.block_size - 1
        full = np.diff(stream.offsets) - 1  # without EOS
        kept = rows_within_limit(
            full, raw.location, limit, self.too_long, name, option="block_size"
        )
        full = full[kept]
        lengths = np.minimum(full, limit)
        sizes = np.diff([stream.bytes_before, stream.words_before])[:, kept]
        sizes = (sizes * (lengths / np.maximum(full, 1))).round().astype(np.int64)
        max_tokens = self.batch_size * self.block_size
        order = self.batch_order(name, lengths + 1, max_tokens=max_tokens)
        begins = stream.offsets[kept]
        return DocumentDataset(stream.ids, begins, lengths, sizes, eos_id, order)
