"""CausalTextData: DataModule for causal language modelling on text from files or the hub."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fourfold.core.validation import check_choice, check_positive
from fourfold.data.loading.batches import CausalBatch
from fourfold.data.loading.datamodule import BatchedDataset
from fourfold.data.loading.ragged import RaggedArray
from fourfold.data.readers.documents import DocumentUnit, TextSource, count_bytes_and_words
from fourfold.data.readers.hf_datasets import HubConfig
from fourfold.data.readers.text_table import TextTable
from fourfold.data.readers.truncation import TooLong, limit_lengths
from fourfold.data.text.base import TextDataModule
from fourfold.data.text.causal_lm_dataset import BlockDataset, DocumentDataset, TokenStream
from fourfold.errors import InputError
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig


class CausalTextData(TextDataModule):
    """Text for causal language models; the target of each token is the next token.

    `n_bytes` and `n_words` of the batches of a validation or test split add up to the UTF-8 bytes
    and the whitespace-separated words of its text. The EOS after each document is a target and
    counts as a token, but not as a byte or a word.

    Args:
        source: builtin (Python's documentation, no network), files or hub.
        train: Files (plain, .gz, .xz, .bz2, `archive.zip/member`; .jsonl, .csv and .tsv are
            tables), also looked up under $FOURFOLD_DATA; or the name of a split of the hub.
        val: As `train`; or a fraction to hold out. Of a single document its end is held out, of
            several documents whole ones.
        test: As `val`.
        column: Column of tables and hub datasets with the text; each row is a document.
        documents: Unit of plain text that is one document: file, line or paragraph.
        hub: Dataset for source hub.
        train_rows: Train on this number of documents only, sampled from all training documents.
        tokenizer: Tokenizer to train or load; by default a byte-level BPE.
        block_size: Tokens of a row; with batching documents the maximum length, EOS included.
        batching: blocks (the text is divided into rows, each token once per epoch), crops (equally
            many rows at random positions, as in nanoGPT) or documents (one per row, in batches of
            similar length).
        batch_size: Rows of a batch; with batching documents, `batch_size * block_size` bounds the
            padded tokens of a batch.
        block_cross_document_attention: Prevent attention between documents of one row.
        eval_context: Tokens that a validation or test row repeats from the previous row, as inputs
            without a target.
        too_long: Treatment of longer documents with batching documents: error, truncate, or drop
            (training only).
        seed: Seed of shuffling and crops, together with the epoch.
        num_workers: Worker processes that prepare batches.

    Raises:
        InputError: If an option is invalid; on setup, if text is missing, empty, corrupted or too
            short.
    """

    batch_class = CausalBatch

    def __init__(
        self,
        source: Literal["builtin", "files", "hub"] = "builtin",
        train: str | list[str] | None = None,
        val: float | str | list[str] | None = None,
        test: float | str | list[str] | None = None,
        column: str = "text",
        documents: DocumentUnit = "file",
        hub: HubConfig | None = None,
        train_rows: int | None = None,
        tokenizer: TokenizerConfig = TokenizerConfig(kind="byte_bpe"),  # noqa: B008 (frozen)
        block_size: int = 128,
        batching: Literal["blocks", "crops", "documents"] = "blocks",
        batch_size: int = 32,
        block_cross_document_attention: bool = False,
        eval_context: int = 0,
        too_long: TooLong = "error",
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__(tokenizer, seed, num_workers)
        check_choice("batching", batching, ["blocks", "crops", "documents"])
        check_positive("block_size", block_size)
        check_positive("batch_size", batch_size)
        if not 0 <= eval_context < block_size:
            message = f"must be at least 0 and below block_size={block_size}, got {eval_context}"
            raise InputError(message, option="eval_context")
        self.split_sources = {"train": train, "val": val, "test": test}
        self.text = TextSource(source, self.split_sources, column, documents, hub, train_rows)
        self.block_size = block_size
        self.batching = batching
        self.batch_size = batch_size
        self.block_cross_document_attention = block_cross_document_attention
        self.eval_context = eval_context
        self.too_long = too_long

    def read(self) -> dict[str, TextTable]:
        return self.text.read()

    def training_texts(self, raw: TextTable) -> Sequence[str]:
        return raw.columns[0]

    def encode(self, name: str, raw: TextTable, tokenizer: Tokenizer) -> BatchedDataset:
        documents = RaggedArray.from_lengths(*tokenizer.encode_corpus(raw.columns[0]))
        shuffle = name == "train"
        if self.batching == "documents":
            return self._document_dataset(name, raw, documents, tokenizer.eos_id)
        stream = TokenStream(documents, raw.columns[0], tokenizer.eos_id)
        if self.batching == "crops" and shuffle and len(stream) < self.block_size:
            message = f"the training split has {len(stream)} tokens, fewer than"
            raise InputError(f"{message} block_size={self.block_size}", file=raw.location(0))
        return BlockDataset(
            stream,
            self.block_size,
            context=0 if shuffle else self.eval_context,
            crops=self.batching == "crops" and shuffle,
            block_cross_document_attention=self.block_cross_document_attention,
            seed=self.seed,
            max_rows=self.batch_size,
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
        return DocumentDataset(
            kept,
            n_bytes,
            n_words,
            eos_id,
            max_tokens=self.batch_size * self.block_size,
            seed=self.seed,
            shuffle=name == "train",
        )
