"""MaskedTextData: DataModule for masked language modelling on text from files or the hub."""

from typing import Any, Literal, get_args

from fourfold.core.validation import check_choice, check_range
from fourfold.data.loading.batches import MaskedBatch
from fourfold.data.loading.datamodule import BatchedDataset
from fourfold.data.loading.ragged import RaggedArray
from fourfold.data.readers.splits import Source
from fourfold.data.readers.text_table import TextTable
from fourfold.data.readers.truncation import limit_lengths
from fourfold.data.text.base import DocumentDataModule
from fourfold.data.text.masked_lm_dataset import (
    MaskedRowDataset,
    SegmentPairDataset,
    pack_sentences,
)
from fourfold.data.text.masking import Masking, MaskingConfig
from fourfold.data.text.sentence_packing import SentenceBreak, Sentences
from fourfold.errors import InputError
from fourfold.tokenization.tokenizer import Tokenizer

Layout = Literal["full_sentences", "doc_sentences", "segment_pairs", "sentence_pairs", "documents"]
PAIR_LAYOUTS = ("segment_pairs", "sentence_pairs")  # with next-sentence labels
MIN_LEN = 5  # BOS, EOS, a token of each segment, EOS


class MaskedTextData(DocumentDataModule):
    """DataModule for masked language models.

    Validation and test use the same masks in every epoch, so that their losses can be compared.

    Args:
        source: builtin (Python's documentation, no network), files or hub.
        sentences: End of a sentence: the end of a line, or punctuation.
        max_len: Maximum tokens of a row, special tokens included.
        layout: full_sentences (rows of whole sentences that may cross documents, RoBERTa),
            doc_sentences (rows of one document), segment_pairs (two segments with a next-sentence
            label, BERT), sentence_pairs (two single sentences with that label) or documents (one
            per row). A sentence that is too long for a row is divided.
        masking: Options of masking.
        options: Arguments of `DocumentDataModule`.

    Raises:
        InputError: As `DocumentDataModule`.
    """

    batch_class = MaskedBatch
    needs_mask = True

    def __init__(
        self,
        source: Source = "builtin",
        *,
        sentences: SentenceBreak = "punctuation",
        max_len: int = 128,
        layout: Layout = "full_sentences",
        masking: MaskingConfig = MaskingConfig(),  # noqa: B008 (frozen)
        **options: Any,
    ) -> None:
        super().__init__(source, **options)
        check_range("max_len", max_len, minimum=MIN_LEN)
        check_choice("layout", layout, get_args(Layout))
        self.sentences = sentences
        self.max_len = max_len
        self.layout = layout
        self.masking = masking

    def encode(self, name: str, raw: TextTable, tokenizer: Tokenizer) -> BatchedDataset:
        masking = Masking(self.masking, tokenizer, self.seed)
        if self.layout == "documents":
            encoded = RaggedArray.from_lengths(*tokenizer.encode_corpus(raw.columns[0]))
            (kept,), _ = limit_lengths([encoded], raw, self.max_len - 2, self.too_long, name)
            rows = kept.wrap(tokenizer.bos_id, tokenizer.eos_id)
            max_tokens = self.batch_size * self.max_len
            order = self.batch_order(name, rows.lengths, max_tokens=max_tokens)
            return MaskedRowDataset(rows, masking, order)
        has_pairs = self.layout in PAIR_LAYOUTS
        # A pair has one more EOS and at least one token in its other segment.
        limit = self.max_len - 4 if has_pairs else self.max_len - 2
        sentences = Sentences.from_texts(raw.columns[0], tokenizer, self.sentences, limit)
        if len(sentences) == 0:
            raise InputError(f"the {name} split has no sentence", file=raw.location(0))
        if has_pairs:
            return SegmentPairDataset(
                sentences,
                self.max_len,
                masking,
                single=self.layout == "sentence_pairs",
                max_rows=self.batch_size,
                seed=self.seed,
                shuffle=name == "train",
            )
        cross = self.layout == "full_sentences"
        rows = pack_sentences(
            sentences, self.max_len, tokenizer.bos_id, tokenizer.eos_id, cross_documents=cross
        )
        order = self.batch_order(name, rows.lengths, max_rows=self.batch_size)
        return MaskedRowDataset(rows, masking, order, self.block_cross_document_attention)
