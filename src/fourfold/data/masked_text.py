"""Text for masked language models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

from fourfold.core.errors import InputError
from fourfold.data.batch import MaskedBatch
from fourfold.data.datamodule import BatchDataset
from fourfold.data.documents import TextSource, Unit
from fourfold.data.hub import HubConfig
from fourfold.data.limits import TooLong, fit_lengths
from fourfold.data.masked_rows import RowDataset, SegmentPairDataset, packed
from fourfold.data.masking import Masking, MaskingConfig
from fourfold.data.sentences import SentenceBreak, Sentences
from fourfold.data.sources import Rows
from fourfold.data.tokenized import TokenizedData
from fourfold.data.tokenizer import Tokenizer
from fourfold.data.tokenizer_training import TokenizerConfig

Layout = Literal["full_sentences", "doc_sentences", "segment_pairs", "sentence_pairs", "documents"]
PAIRS = ("segment_pairs", "sentence_pairs")  # with next-sentence labels


class MaskedTextData(TokenizedData):
    """Text with hidden tokens.

    Validation and test hide the same tokens each time, so that their loss can be compared.

    Args:
        source: embedded (Python's documentation, no network), files or hub.
        train: files (plain, .gz, .xz, .bz2, `archive.zip/member`; .jsonl, .csv and .tsv are
            tables),
            relative names are also looked up under $FOURFOLD_DATA; or the name of a hub's split.
        val: as `train`; or a fraction to hold out: the end of a single document, else whole ones.
        test: as `val`.
        column: the column with the text in tables and hub rows; each row is a document.
        documents: what a document is in plain text: file, line or paragraph.
        sentences: what ends a sentence: a line's end, or punctuation.
        hub: the data set, for source hub.
        train_rows: learn from so many documents only, drawn from all of training.
        tokenizer: by default a WordPiece trained on the training split.
        max_len: most tokens of a row, with special ones.
        layout: full_sentences (rows filled with whole sentences over the ends of documents,
            RoBERTa),
            doc_sentences (not over them), segment_pairs (two segments, with next-sentence labels,
            BERT), sentence_pairs (the same with one sentence each) or documents (one a row).
            Sentences too long for a row are cut into several.
        masking: how tokens are hidden.
        batch_size: rows; with layout documents as many tokens as so many longest rows have.
        mark_documents: keep documents of one row apart by `batch.documents` (full_sentences).
        too_long: with layout documents: error, truncate, or drop (training only).
        seed: decides order, pairs and masks, together with the epoch.
        num_workers: processes that prepare batches.

    Raises:
        InputError: (on setup) text is missing, empty or broken, or an option is wrong.
    """

    batch_class = MaskedBatch

    needs_mask = True

    def __init__(
        self,
        source: Literal["embedded", "files", "hub"] = "embedded",
        train: str | list[str] | None = None,
        val: float | str | list[str] | None = None,
        test: float | str | list[str] | None = None,
        column: str = "text",
        documents: Unit = "paragraph",
        sentences: SentenceBreak = "punctuation",
        hub: HubConfig | None = None,
        train_rows: int | None = None,
        tokenizer: TokenizerConfig = TokenizerConfig(kind="wordpiece"),  # noqa: B008 (frozen)
        max_len: int = 128,
        layout: Layout = "full_sentences",
        masking: MaskingConfig = MaskingConfig(),  # noqa: B008 (frozen)
        batch_size: int = 32,
        mark_documents: bool = False,
        too_long: TooLong = "error",
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__(tokenizer, seed, num_workers)
        if max_len < 5 or batch_size < 1:
            raise InputError(f"Cannot make rows of max_len={max_len}, batch_size={batch_size}.")
        self.parts = {"train": train, "val": val, "test": test}
        self.text = TextSource(source, self.parts, column, documents, hub, train_rows)
        self.sentences, self.max_len, self.layout = sentences, max_len, layout
        self.masking, self.batch_size = masking, batch_size
        self.mark_documents, self.too_long = mark_documents, too_long

    def read(self) -> dict[str, Rows]:
        return self.text.read()

    def training_texts(self, raw: Rows) -> Sequence[str]:
        return raw.columns[0]

    def encode(self, name: str, raw: Rows, tokenizer: Tokenizer) -> BatchDataset:
        masking = Masking(self.masking, tokenizer, self.seed)
        plan: dict[str, Any] = {"seed": self.seed, "shuffle": name == "train"}
        if self.layout == "documents":
            encoded = tokenizer.encode_corpus(raw.columns[0])
            (kept,), _ = fit_lengths([encoded], raw, self.max_len - 2, self.too_long, name)
            rows = kept.wrap(tokenizer.bos_id, tokenizer.eos_id)
            return RowDataset(rows, masking, max_tokens=self.batch_size * self.max_len, **plan)
        plan["max_rows"] = self.batch_size
        if self.layout in PAIRS:
            limit = self.max_len - 4  # one token at least for the other segment
        elif self.layout in ("full_sentences", "doc_sentences"):
            limit = self.max_len - 2
        else:
            raise InputError(
                f"layout must be one of {', '.join(get_args(Layout))}, not {self.layout!r}."
            )
        found = Sentences.of(raw.columns[0], tokenizer, self.sentences, limit)
        if len(found) == 0:
            raise InputError(f"{raw.where(0)} and on: no sentence in the {name} split.")
        if self.layout in PAIRS:
            single = self.layout == "sentence_pairs"
            return SegmentPairDataset(found, self.max_len, masking, single=single, **plan)
        cross = self.layout == "full_sentences"
        rows = packed(found, self.max_len, tokenizer.bos_id, tokenizer.eos_id, cross=cross)
        return RowDataset(rows, masking, mark_documents=self.mark_documents, **plan)
