"""CausalTextData: DataModule for causal language modelling on text from files or the hub."""

from typing import Any, Literal

import numpy as np

from fourfold.core.validation import check_choice, check_positive
from fourfold.data.loading.batches import CausalBatch
from fourfold.data.loading.datamodule import BatchedDataset
from fourfold.data.loading.ragged import RaggedArray
from fourfold.data.readers.documents import DocumentUnit, count_bytes_and_words
from fourfold.data.readers.splits import Source
from fourfold.data.readers.text_table import TextTable
from fourfold.data.readers.truncation import limit_lengths
from fourfold.data.text.base import DocumentDataModule
from fourfold.data.text.causal_lm_dataset import BlockDataset, DocumentDataset, TokenStream
from fourfold.errors import InputError
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig


class CausalTextData(DocumentDataModule):
    """DataModule for causal language models; the target of each token is the next token.

    The sums of `n_bytes` and `n_words` over the batches of a validation or test split are the UTF-8
    bytes and the whitespace-separated words of the text. The EOS after each document is a target
    and counts as a token, but not as a byte or a word.

    Args:
        source: builtin (Python's documentation, no network), files or hub.
        documents: Unit of plain text that is one document: file, line or paragraph.
        tokenizer: Tokenizer to train or load; by default a byte-level BPE.
        block_size: Tokens of a row; with batching documents the maximum length, EOS included.
        batching: blocks (the text is divided into rows, each token once per epoch), crops (equally
            many rows at random positions, as in nanoGPT) or documents (one per row, in batches of
            similar length).
        eval_context: Tokens that a validation or test row repeats from the previous row, as inputs
            without a target.
        options: Arguments of `DocumentDataModule`.

    Raises:
        InputError: As `DocumentDataModule`; or if the training split is too short for a crop.
    """

    batch_class = CausalBatch

    def __init__(
        self,
        source: Source = "builtin",
        *,
        documents: DocumentUnit = "file",
        tokenizer: TokenizerConfig = TokenizerConfig(kind="byte_bpe"),  # noqa: B008 (frozen)
        block_size: int = 128,
        batching: Literal["blocks", "crops", "documents"] = "blocks",
        eval_context: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(source, documents=documents, tokenizer=tokenizer, **options)
        check_choice("batching", batching, ["blocks", "crops", "documents"])
        check_positive("block_size", block_size)
        if not 0 <= eval_context < block_size:
            message = f"must be at least 0 and below block_size={block_size}, got {eval_context}"
            raise InputError(message, option="eval_context")
        self.block_size = block_size
        self.batching = batching
        self.eval_context = eval_context

    def encode(self, name: str, raw: TextTable, tokenizer: Tokenizer) -> BatchedDataset:
        """Return the dataset of the split `name`: blocks, crops or documents."""
        documents = RaggedArray.from_lengths(*tokenizer.encode_corpus(raw.columns[0]))
        shuffle = name == "train"
        if self.batching == "documents":
            return self._document_dataset(name, raw, documents, tokenizer.eos_id)
        stream = TokenStream(documents, raw.columns[0], tokenizer.eos_id)
        crops = self.batching == "crops" and shuffle
        if crops and len(stream) < self.block_size:
            message = f"the training split has {len(stream)} tokens, fewer than"
            raise InputError(f"{message} block_size={self.block_size}", file=raw.location(0))
        return BlockDataset(
            stream,
            self.block_size,
            context=0 if shuffle else self.eval_context,
            crops=crops,
            block_cross_document_attention=self.block_cross_document_attention,
            max_rows=self.batch_size,
            seed=self.seed,
            shuffle=shuffle,
        )

    def _document_dataset(
        self, name: str, raw: TextTable, documents: RaggedArray, eos_id: int
    ) -> DocumentDataset:
        limit = self.block_size - 1
        (kept,), rows = limit_lengths([documents], raw, limit, self.too_long, name, "block_size")
        # With as many rows as before, documents may be truncated; otherwise long ones are dropped.
        full = documents if len(documents) == len(kept) else kept
        kept_fraction = kept.lengths / np.maximum(full.lengths, 1)
        n_bytes, n_words = (
            np.round(np.array(size) * kept_fraction).astype(np.int64)
            for size in count_bytes_and_words(rows.columns[0])
        )
        max_tokens = self.batch_size * self.block_size
        order = self.batch_order(name, kept.lengths + 1, max_tokens=max_tokens)
        return DocumentDataset(kept.wrap(eos_id, eos_id), n_bytes, n_words, eos_id, order)
