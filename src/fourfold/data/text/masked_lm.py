"""MaskedTextData: DataModule for masked language modelling on text from files or the hub."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

from fourfold.core.validation import check_choice, check_positive
from fourfold.data.loading.batches import MaskedBatch
from fourfold.data.loading.datamodule import BatchedDataset
from fourfold.data.loading.ragged import RaggedArray
from fourfold.data.readers.documents import DocumentUnit, TextSource
from fourfold.data.readers.hf_datasets import HubConfig
from fourfold.data.readers.text_table import TextTable
from fourfold.data.readers.truncation import TooLong, limit_lengths
from fourfold.data.text.base import TextDataModule
from fourfold.data.text.masked_lm_dataset import (
    MaskedRowDataset,
    SegmentPairDataset,
    pack_sentences,
)
from fourfold.data.text.masking import Masking, MaskingConfig
from fourfold.data.text.sentence_packing import SentenceBreak, Sentences
from fourfold.errors import InputError
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig

Layout = Literal["full_sentences", "doc_sentences", "segment_pairs", "sentence_pairs", "documents"]
PAIR_LAYOUTS = ("segment_pairs", "sentence_pairs")  # with next-sentence labels
MIN_LEN = 5  # BOS, EOS, a token of each segment, EOS


class MaskedTextData(TextDataModule):
    """Text for masked language models.

    Validation and test use the same masks in every epoch, so that their losses can be compared.

    Args:
        source: builtin (Python's documentation, no network), files or hub.
        train: Files (plain, .gz, .xz, .bz2, `archive.zip/member`; .jsonl, .csv and .tsv are
            tables), also looked up under $FOURFOLD_DATA; or the name of a split of the hub.
        val: As `train`; or a fraction to hold out. Of a single document its end is held out, of
            several documents whole ones.
        test: As `val`.
        column: Column of tables and hub datasets with the text; each row is a document.
        documents: Unit of plain text that is one document: file, line or paragraph.
        sentences: End of a sentence: the end of a line, or punctuation.
        hub: Dataset for source hub.
        train_rows: Train on this number of documents only, sampled from all training documents.
        tokenizer: Tokenizer to train or load; by default a WordPiece.
        max_len: Maximum tokens of a row, special tokens included.
        layout: full_sentences (rows of whole sentences that may cross documents, RoBERTa),
            doc_sentences (rows of one document), segment_pairs (two segments with a next-sentence
            label, BERT), sentence_pairs (two single sentences with that label) or documents (one
            per row). A sentence that is too long for a row is divided.
        masking: Options of masking.
        batch_size: Rows of a batch; with layout documents, `batch_size * max_len` bounds the padded
            tokens of a batch.
        block_cross_document_attention: Prevent attention between documents of one row
            (full_sentences).
        too_long: Treatment of longer documents with layout documents: error, truncate, or drop
            (training only).
        seed: Seed of shuffling, segment pairs and masks, together with the epoch.
        num_workers: Worker processes that prepare batches.

    Raises:
        InputError: If an option is invalid; on setup, if text is missing, empty or corrupted.
    """

    batch_class = MaskedBatch
    needs_mask = True

    def __init__(
        self,
        source: Literal["builtin", "files", "hub"] = "builtin",
        train: str | list[str] | None = None,
        val: float | str | list[str] | None = None,
        test: float | str | list[str] | None = None,
        column: str = "text",
        documents: DocumentUnit = "paragraph",
        sentences: SentenceBreak = "punctuation",
        hub: HubConfig | None = None,
        train_rows: int | None = None,
        tokenizer: TokenizerConfig = TokenizerConfig(kind="wordpiece"),  # noqa: B008 (frozen)
        max_len: int = 128,
        layout: Layout = "full_sentences",
        masking: MaskingConfig = MaskingConfig(),  # noqa: B008 (frozen)
        batch_size: int = 32,
        block_cross_document_attention: bool = False,
        too_long: TooLong = "error",
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__(tokenizer, seed, num_workers)
        if max_len < MIN_LEN:
            raise InputError(f"must be at least {MIN_LEN}, got {max_len}", option="max_len")
        check_positive("batch_size", batch_size)
        check_choice("layout", layout, get_args(Layout))
        self.split_sources = {"train": train, "val": val, "test": test}
        self.text = TextSource(source, self.split_sources, column, documents, hub, train_rows)
        self.sentences = sentences
        self.max_len = max_len
        self.layout = layout
        self.masking = masking
        self.batch_size = batch_size
        self.block_cross_document_attention = block_cross_document_attention
        self.too_long = too_long

    def read(self) -> dict[str, TextTable]:
        return self.text.read()

    def training_texts(self, raw: TextTable) -> Sequence[str]:
        return raw.columns[0]

    def encode(self, name: str, raw: TextTable, tokenizer: Tokenizer) -> BatchedDataset:
        masking = Masking(self.masking, tokenizer, self.seed)
        order: dict[str, Any] = {"seed": self.seed, "shuffle": name == "train"}
        if self.layout == "documents":
            encoded = RaggedArray.from_lengths(*tokenizer.encode_corpus(raw.columns[0]))
            (kept,), _ = limit_lengths([encoded], raw, self.max_len - 2, self.too_long, name)
            rows = kept.wrap(tokenizer.bos_id, tokenizer.eos_id)
            max_tokens = self.batch_size * self.max_len
            return MaskedRowDataset(rows, masking, max_tokens=max_tokens, **order)
        order["max_rows"] = self.batch_size
        has_pairs = self.layout in PAIR_LAYOUTS
        # A pair has one more EOS and at least one token in its other segment.
        limit = self.max_len - 4 if has_pairs else self.max_len - 2
        sentences = Sentences.from_texts(raw.columns[0], tokenizer, self.sentences, limit)
        if len(sentences) == 0:
            raise InputError(f"the {name} split has no sentence", file=raw.location(0))
        if has_pairs:
            single = self.layout == "sentence_pairs"
            return SegmentPairDataset(sentences, self.max_len, masking, single=single, **order)
        rows = pack_sentences(
            sentences,
            self.max_len,
            tokenizer.bos_id,
            tokenizer.eos_id,
            cross_documents=self.layout == "full_sentences",
        )
        block = self.block_cross_document_attention
        return MaskedRowDataset(rows, masking, block_cross_document_attention=block, **order)
