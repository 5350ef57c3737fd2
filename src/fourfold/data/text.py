"""Text for causal language models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from fourfold.core.errors import InputError
from fourfold.data.batch import CausalBatch
from fourfold.data.datamodule import BatchDataset
from fourfold.data.documents import TextSource, Unit, sizes
from fourfold.data.hub import HubConfig
from fourfold.data.limits import TooLong, fit_lengths
from fourfold.data.ragged import Ragged
from fourfold.data.sources import Rows
from fourfold.data.stream import Stream
from fourfold.data.text_rows import BlockDataset, DocumentDataset
from fourfold.data.tokenized import TokenizedData
from fourfold.data.tokenizer import Tokenizer
from fourfold.data.tokenizer_training import TokenizerConfig


class CausalTextData(TokenizedData):
    """Text whose next token is to be predicted.

    `n_bytes` and `n_words` of the batches of a validation or test split add up to the UTF-8 bytes
    and the white-space words of its text. The EOS after each document is predicted and counted as a
    token, but adds neither a byte nor a word.

    Args:
        source: embedded (Python's documentation, no network), files or hub.
        train: files (plain, .gz, .xz, .bz2, `archive.zip/member`; .jsonl, .csv and .tsv are
            tables),
            relative names are also looked up under $FOURFOLD_DATA; or the name of a hub's split.
        val: as `train`; or a fraction to hold out: the end of a single document, else whole ones.
        test: as `val`.
        column: the column with the text in tables and hub rows; each row is a document.
        documents: what a document is in plain text: file, line or paragraph.
        hub: the data set, for source hub.
        train_rows: learn from so many documents only, drawn from all of training.
        tokenizer: by default a byte-level BPE trained on the training split.
        block_size: tokens of a row; with batching documents the greatest length (with EOS).
        batching: blocks (the text cut into rows, each token once an epoch), crops (as many rows
            from
            random places, as nanoGPT does) or documents (one a row, in batches of similar length).
        batch_size: rows; with batching documents as many tokens as so many blocks have.
        mark_documents: keep documents of one row apart by `batch.documents`.
        eval_context: tokens that a validation or test row repeats, uncounted, from the one before.
        too_long: with batching documents: error, truncate, or drop (training only).
        seed: decides order and crops, together with the epoch.
        num_workers: processes that prepare batches.

    Raises:
        InputError: (on setup) text is missing, empty, broken or too short, or an option is wrong.
    """

    batch_class = CausalBatch

    def __init__(
        self,
        source: Literal["embedded", "files", "hub"] = "embedded",
        train: str | list[str] | None = None,
        val: float | str | list[str] | None = None,
        test: float | str | list[str] | None = None,
        column: str = "text",
        documents: Unit = "file",
        hub: HubConfig | None = None,
        train_rows: int | None = None,
        tokenizer: TokenizerConfig = TokenizerConfig(kind="byte_bpe"),  # noqa: B008 (frozen)
        block_size: int = 128,
        batching: Literal["blocks", "crops", "documents"] = "blocks",
        batch_size: int = 32,
        mark_documents: bool = False,
        eval_context: int = 0,
        too_long: TooLong = "error",
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__(tokenizer, seed, num_workers)
        if batching not in ("blocks", "crops", "documents"):
            raise InputError(f"batching must be blocks, crops or documents, not {batching!r}.")
        if block_size < 1 or batch_size < 1 or not 0 <= eval_context < block_size:
            raise InputError(
                f"Cannot make rows with block_size={block_size}, batch_size={batch_size} and"
                f" eval_context={eval_context}."
            )
        self.parts = {"train": train, "val": val, "test": test}
        self.text = TextSource(source, self.parts, column, documents, hub, train_rows)
        self.block_size, self.batching, self.batch_size = block_size, batching, batch_size
        self.mark_documents, self.eval_context = mark_documents, eval_context
        self.too_long = too_long

    def read(self) -> dict[str, Rows]:
        return self.text.read()

    def training_texts(self, raw: Rows) -> Sequence[str]:
        return raw.columns[0]

    def encode(self, name: str, raw: Rows, tokenizer: Tokenizer) -> BatchDataset:
        documents = tokenizer.encode_corpus(raw.columns[0])
        shuffle = name == "train"
        if self.batching == "documents":
            return self._rows_of_documents(name, raw, documents, tokenizer.eos_id)
        stream = Stream(documents, raw.columns[0], tokenizer.eos_id)
        if self.batching == "crops" and shuffle and len(stream) < self.block_size:
            raise InputError(
                f"{raw.where(0)}: {len(stream)} tokens are too few for crops of {self.block_size}."
            )
        return BlockDataset(
            stream,
            self.block_size,
            context=0 if shuffle else self.eval_context,
            crops=self.batching == "crops" and shuffle,
            mark_documents=self.mark_documents,
            seed=self.seed,
            max_rows=self.batch_size,
            shuffle=shuffle,
        )

    def _rows_of_documents(
        self, name: str, raw: Rows, documents: Ragged, eos_id: int
    ) -> DocumentDataset:
        limit = self.block_size - 1
        (kept,), rows = fit_lengths([documents], raw, limit, self.too_long, name, "block_size")
        whole = documents if len(documents) == len(kept) else kept  # dropped, or maybe truncated
        share = kept.lengths / np.maximum(whole.lengths, 1)
        n_bytes, n_words = (
            np.round(np.array(size) * share).astype(np.int64) for size in sizes(rows.columns[0])
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
