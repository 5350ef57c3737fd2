"""DataModule for masked language models, with the dataset of packed sentences.

Shapes: B sequences, T tokens of the longest sequence.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Literal, get_args

import numpy as np

from fourfold.core.validation import check_choice, check_range
from fourfold.data.loading.batches import MaskedBatch
from fourfold.data.loading.datamodule import BatchedDataset
from fourfold.data.loading.length_bucketing import LengthBucketedOrder
from fourfold.data.loading.ragged import RaggedArray
from fourfold.data.readers.text_table import TextTable
from fourfold.data.readers.truncation import limit_lengths
from fourfold.data.text.base import DocumentDataModule, text_data
from fourfold.data.text.masking import Masking, MaskingConfig, masked_batch
from fourfold.data.text.next_sentence import SegmentPairDataset
from fourfold.data.text.packing import SentenceBreak, Sentences
from fourfold.errors import InputError
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig


def pack_sentences(
    sentences: Sentences, max_len: int, tokenizer: Tokenizer, *, cross_documents: bool
) -> RaggedArray:
    """Pack whole sentences into sequences from BOS to EOS (Liu et al. 2019, section 4.2).

    Args:
        sentences: Encoded sentences of all documents.
        max_len: Maximum number of tokens of a sequence, BOS and EOS included.
        tokenizer: Tokenizer with BOS and EOS. An EOS also separates two documents of a sequence.
        cross_documents: True if a sequence may contain sentences of several documents
            (FULL-SENTENCES); otherwise all are of one document (DOC-SENTENCES).
    """
    borders = sentences.pack(max_len - 2, cross_documents=cross_documents, separator_cost=1)
    firsts = np.concatenate([[0], borders])
    eos_id = tokenizer.eos_id
    follows_document = np.diff(sentences.document, prepend=sentences.document[0]) != 0
    follows_document[firsts] = False  # no separator at the beginning of a row
    ids = np.insert(sentences.ids.ids, sentences.ids.offsets[:-1][follows_document], eos_id)
    lengths = np.add.reduceat(sentences.ids.lengths + follows_document, firsts)
    return RaggedArray.from_lengths(ids, lengths).wrap(tokenizer.bos_id, eos_id)


@dataclass(eq=False)
class MaskedRowDataset(BatchedDataset):
    """Dataset of text sequences from BOS to EOS, whose tokens are masked when a batch is made."""

    rows: RaggedArray
    masking: Masking
    order: LengthBucketedOrder
    block_cross_document_attention: bool = False

    def batch(self, rows: np.ndarray, epoch: int, position: int) -> MaskedBatch:
        ids, mask = self.rows.padded(rows, self.masking.tokenizer.pad_id)  # (B, T)
        block = self.block_cross_document_attention
        return masked_batch(self.masking, ids.numpy(), mask.numpy(), rows, epoch, position, block)


Layout = Literal["full_sentences", "doc_sentences", "segment_pairs", "sentence_pairs", "documents"]
MIN_LEN = 5  # number of tokens of the shortest pair: BOS A EOS B EOS with one token in A and B


@text_data
class MaskedTextData(DocumentDataModule):
    """DataModule for masked language models.

    Validation and test use the same masks each time, so that the losses of different epochs can be
    compared.

    Args:
        sentences: Boundary between sentences: "line" (the end of a line) or "punctuation" (an empty
            line, or white space after a full stop, question mark or exclamation mark).
        max_len: Maximum number of tokens of a sequence, special tokens included.
        layout: Content of a sequence: "full_sentences" (whole sentences, possibly of several
            documents, as in RoBERTa), "doc_sentences" (whole sentences of one document),
            "segment_pairs" (two segments of several sentences with a next-sentence label, as in
            BERT), "sentence_pairs" (two single sentences with a next-sentence label) or "documents"
            (one document). Except with "documents", a sentence that is too long for a sequence is
            divided.
        masking: Options for the selection and replacement of tokens.

    Example:
        >>> data = MaskedTextData(max_len=32)  # Python's documentation
        >>> selected = data.split("val").batch(np.arange(32), epoch=0, position=1).targets != -100
        >>> round(selected.float().mean().item(), 1)  # 15 % by default
        0.1
    """

    batch_class = MaskedBatch
    needs_mask = True

    _: KW_ONLY
    sentences: SentenceBreak = "punctuation"
    max_len: int = 128
    layout: Layout = "full_sentences"
    masking: MaskingConfig = MaskingConfig()

    def __post_init__(self, tokenizer: TokenizerConfig) -> None:
        super().__post_init__(tokenizer)
        check_range("max_len", self.max_len, minimum=MIN_LEN)
        check_choice("layout", self.layout, get_args(Layout))

    def encode(self, name: str, raw: TextTable, tokenizer: Tokenizer) -> BatchedDataset:
        masking = Masking(self.masking, tokenizer, self.seed)
        if self.layout == "documents":
            encoded = RaggedArray.from_lengths(*tokenizer.encode_corpus(raw.columns[0]))
            (kept,), _ = limit_lengths([encoded], raw, self.max_len - 2, self.too_long, name)
            rows = kept.wrap(tokenizer.bos_id, tokenizer.eos_id)
            max_tokens = self.batch_size * self.max_len
            order = self.batch_order(name, rows.lengths, max_tokens=max_tokens)
            return MaskedRowDataset(rows, masking, order)
        has_pairs = self.layout in ("segment_pairs", "sentence_pairs")
        # A pair has one more EOS and at least one token in its other segment.
        limit = self.max_len - 4 if has_pairs else self.max_len - 2
        sentences = Sentences.from_texts(raw.columns[0], tokenizer, self.sentences, limit)
        if len(sentences) == 0:
            raise InputError(f"the {name} split has no sentence", file=raw.location(0))
        if has_pairs:
            single = self.layout == "sentence_pairs"
            options = {"max_rows": self.batch_size, "seed": self.seed, "shuffle": name == "train"}
            return SegmentPairDataset(sentences, self.max_len, masking, single=single, **options)
        cross = self.layout == "full_sentences"
        rows = pack_sentences(sentences, self.max_len, tokenizer, cross_documents=cross)
        order = self.batch_order(name, rows.lengths, max_rows=self.batch_size)
        return MaskedRowDataset(rows, masking, order, self.block_cross_document_attention)
