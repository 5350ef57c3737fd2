"""DataModules for masked language models and for span corruption, with their datasets.

Shapes: B sequences, T tokens of the longest sequence.
"""

from dataclasses import KW_ONLY, InitVar, dataclass
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
import torch

from fourfold.core.validation import check_range
from fourfold.data.loading.batches import MaskedBatch, PairBatch
from fourfold.data.loading.counter_rng import uniform
from fourfold.data.loading.datamodule import BatchedDataset
from fourfold.data.loading.length_bucketing import LengthBucketedOrder
from fourfold.data.loading.ragged import RaggedArray
from fourfold.data.readers.documents import Documents, DocumentUnit
from fourfold.data.readers.truncation import rows_within_limit
from fourfold.data.text.base import DocumentDataModule, text_data
from fourfold.data.text.masking import (
    Masking,
    MaskingConfig,
    count_noise,
    masked_batch,
    noise_mask,
    replace_spans,
    span_lengths,
)
from fourfold.data.text.next_sentence import SegmentPairDataset
from fourfold.data.text.packing import SentenceBreak, Sentences
from fourfold.data.text.token_cache import sentence_arrays
from fourfold.errors import InputError
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig


@dataclass(frozen=True)
class PackedRows:
    """Sequences from BOS to EOS, each made from consecutive tokens when it is read.

    An EOS also separates two documents of a sequence.

    Args:
        ids: Token ids of all texts.
        begins: (rows,) index in `ids` of the first token of each sequence.
        ends: (rows,) index in `ids` after the last token of each sequence.
        breaks: Sorted indices in `ids` at which documents begin.
        tokenizer: Tokenizer with BOS and EOS.
    """

    ids: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    breaks: np.ndarray
    tokenizer: Tokenizer

    @cached_property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each sequence, BOS and EOS included, an array (rows,)."""
        first, last = self._breaks_inside(self.begins, self.ends)
        return self.ends - self.begins + (last - first) + 2

    def _breaks_inside(self, begins: Any, ends: Any) -> Any:
        """Return the index of the first break inside of each sequence, and after its last break."""
        first = np.searchsorted(self.breaks, begins, side="right")
        return first, np.maximum(first, np.searchsorted(self.breaks, ends))

    def __len__(self) -> int:
        return len(self.begins)

    def __getitem__(self, row: int) -> np.ndarray:
        begin, end = self.begins[row], self.ends[row]
        first, last = self._breaks_inside(begin, end)
        at = np.concatenate([[0], self.breaks[first:last] - begin, [end - begin]])
        special = [self.tokenizer.bos_id, *[self.tokenizer.eos_id] * (len(at) - 1)]
        return np.insert(self.ids[begin:end].astype(np.int64), at, special)


def pack_sentences(
    sentences: Sentences, max_len: int, tokenizer: Tokenizer, *, cross_documents: bool
) -> PackedRows:
    """Pack whole sentences into sequences from BOS to EOS (Liu et al. 2019, section 4.2).

    Args:
        sentences: Encoded sentences of all documents.
        max_len: Maximum number of tokens of a sequence, BOS and EOS included.
        tokenizer: Tokenizer with BOS and EOS. An EOS also separates two documents of a sequence.
        cross_documents: True if a sequence may contain sentences of several documents
            (FULL-SENTENCES); otherwise all are of one document (DOC-SENTENCES).
    """
    borders = sentences.pack(max_len - 2, cross_documents=cross_documents, separator_cost=1)
    borders = sentences.ids.offsets[np.concatenate([[0], borders, [len(sentences)]])]
    breaks = sentences.ids.offsets[sentences.starts]
    return PackedRows(sentences.ids.ids, borders[:-1], borders[1:], breaks, tokenizer)


@dataclass(eq=False)
class MaskedRowDataset(BatchedDataset):
    """Dataset of text sequences from BOS to EOS, whose tokens are masked when a batch is made."""

    rows: PackedRows
    masking: Masking
    order: LengthBucketedOrder
    block_cross_document_attention: bool = False

    def batch(self, rows: np.ndarray, epoch: int, position: int) -> MaskedBatch:
        made = RaggedArray.from_rows([self.rows[row] for row in rows.tolist()])
        ids, mask = made.padded(np.arange(len(rows)), self.masking.tokenizer.pad_id)  # (B, T)
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

    def encode(self, name: str, raw: Documents, tokenizer: Tokenizer) -> BatchedDataset:
        masking = Masking(self.masking, tokenizer, self.seed)
        if self.layout == "documents":
            return self._document_dataset(name, raw, masking)
        has_pairs = self.layout in ("segment_pairs", "sentence_pairs")
        # A pair has one more EOS and at least one token in its other segment.
        limit = self.max_len - 4 if has_pairs else self.max_len - 2
        arrays = self.cached(
            name,
            ("sentences", tokenizer.to_str(), self.sentences, limit),
            partial(sentence_arrays, raw, tokenizer, self.sentences, limit, self.num_workers),
        )
        sentences = Sentences(RaggedArray(arrays["ids"], arrays["offsets"]), arrays["starts"])
        if len(sentences) == 0:
            raise InputError(f"the {name} split has no sentence", file=raw.location(0))
        if has_pairs:
            single = self.layout == "sentence_pairs"
            dataset = SegmentPairDataset(sentences, self.max_len, masking, single)
            lengths = np.ones(len(dataset.chunks) - 1, np.int64)
            dataset.order = self.batch_order(name, lengths, max_rows=self.batch_size)
            return dataset
        cross = self.layout == "full_sentences"
        rows = pack_sentences(sentences, self.max_len, tokenizer, cross_documents=cross)
        order = self.batch_order(name, rows.lengths, max_rows=self.batch_size)
        return MaskedRowDataset(rows, masking, order, self.block_cross_document_attention)

    def _document_dataset(self, name: str, raw: Documents, masking: Masking) -> MaskedRowDataset:
        tokenizer = masking.tokenizer
        arrays = self.encoded_stream(name, raw, tokenizer)
        lengths = np.diff(arrays["offsets"]) - 1  # without EOS
        limit = self.max_len - 2
        kept = rows_within_limit(lengths, raw.location, limit, self.too_long, name)
        begins = arrays["offsets"][kept] + 1
        ends = begins + np.minimum(lengths[kept], limit)
        rows = PackedRows(arrays["ids"], begins, ends, np.zeros(0, np.int64), tokenizer)
        max_tokens = self.batch_size * self.max_len
        order = self.batch_order(name, rows.lengths, max_tokens=max_tokens)
        return MaskedRowDataset(rows, masking, order)


_SPAN_STREAMS = 7, 8  # of the counter-based random numbers


@dataclass(eq=False)
class SpanCorruptionDataset(BatchedDataset):
    """Dataset of pairs from consecutive tokens: a text with sentinels, and the spans they replace.

    The last sequence may be shorter than the others and is padded to their lengths.

    Args:
        ids: Token ids of all texts, concatenated.
        lengths: Numbers of tokens of a sequence: before corruption, in the input, in the target.
        noise: Noise density and mean length of a noise span.
        tokenizer: Tokenizer with as many sentinels as a sequence has spans.
        order: Division of the sequences into batches; its seed is also the seed of the spans.
    """

    ids: np.ndarray
    lengths: tuple[int, int, int]
    noise: tuple[float, float]
    tokenizer: Tokenizer
    order: LengthBucketedOrder

    @property
    def max_length(self) -> int:
        return max(self.lengths[1:])

    def batch(self, rows: np.ndarray, epoch: int, position: int) -> PairBatch:
        length, *widths = self.lengths
        widths[1] += 1  # BOS
        sides = [np.full((len(rows), width), self.tokenizer.pad_id) for width in widths]
        masks = [np.zeros_like(side, bool) for side in sides]
        draws = [uniform(self.order.seed, epoch, rows, length, x) for x in _SPAN_STREAMS]
        for i, row in enumerate(rows.tolist()):
            ids = self.ids[row * length : (row + 1) * length].astype(np.int64)
            noise = noise_mask(
                len(ids), *count_noise(len(ids), *self.noise), (draws[0][i], draws[1][i])
            )
            before: Any = ([], [self.tokenizer.bos_id])
            for side, mask, first, is_noise in zip(
                sides, masks, before, (noise, ~noise), strict=True
            ):
                tokens = replace_spans(ids, is_noise, self.tokenizer.sentinel_ids)
                made = [*first, *tokens, self.tokenizer.eos_id]
                side[i, : len(made)], mask[i, : len(made)] = made, True
        src, tgt, src_mask, tgt_mask, index = map(torch.from_numpy, (*sides, *masks, rows))
        return PairBatch(src, tgt, src_mask, tgt_mask, index, epoch, position)


@text_data
class SpanCorruptionData(DocumentDataModule):
    """DataModule for the pre-training of T5 by span corruption (Raffel et al. 2019, section 3.1.4).

    The tokens of all documents, with an EOS after each, are concatenated and cut into sequences. In
    the input, a sentinel such as <extra_id_0> replaces each random span. The target has each
    sentinel and the tokens that it replaces. Both end with EOS. Every epoch has other spans. The
    tokenizer needs as many sentinels as a sequence has spans, see its option `extra_ids`.

    Args:
        max_len: Largest number of input tokens, with sentinels and EOS. The sequences have the
            largest number of tokens that gives such inputs.
        noise_density: Share of the tokens that are replaced, at most 0.9.
        mean_noise_span_length: Mean number of tokens in a span.

    Example:
        >>> data = SpanCorruptionData(max_len=64)  # Python's documentation
        >>> batch = data.split("val").batch(np.arange(2), epoch=0, position=1)
        >>> batch.src.shape, batch.tgt.shape  # the targets follow BOS
        (torch.Size([2, 64]), torch.Size([2, 15]))
    """

    batch_class = PairBatch

    _: KW_ONLY
    documents: DocumentUnit = "file"
    tokenizer: InitVar[TokenizerConfig] = TokenizerConfig(extra_ids=100)
    max_len: int = 128
    noise_density: float = 0.15
    mean_noise_span_length: float = 3.0

    def __post_init__(self, tokenizer: TokenizerConfig) -> None:
        super().__post_init__(tokenizer)
        check_range("max_len", self.max_len, minimum=4)
        # The search for the length of a sequence takes a step for each of its tokens.
        check_range("noise_density", self.noise_density, above=0.0, maximum=0.9)
        check_range("mean_noise_span_length", self.mean_noise_span_length, minimum=1.0)
        if self.block_cross_document_attention:
            message = "must be false: the sequences of span corruption continue across documents"
            raise InputError(message, option="block_cross_document_attention")

    def encode(self, name: str, raw: Documents, tokenizer: Tokenizer) -> BatchedDataset:
        noise = self.noise_density, self.mean_noise_span_length
        lengths = span_lengths(self.max_len, *noise)
        n_spans, n_sentinels = count_noise(lengths[0], *noise)[1], len(tokenizer.sentinel_ids)
        if n_sentinels < n_spans:
            message = f"must have {n_spans} sentinels (<extra_id_0>, ...), got {n_sentinels}"
            raise InputError(f"{message}: set data.tokenizer.extra_ids", option="data.tokenizer")
        # Without the EOS before the first document.
        ids = self.encoded_stream(name, raw, tokenizer)["ids"][1:]
        n_rows = len(ids) // lengths[0] + (len(ids) % lengths[0] > 1)
        if not n_rows:
            raise InputError(f"the {name} split has no text", file=raw.location(0))
        order = self.batch_order(name, np.ones(n_rows, np.int64), max_rows=self.batch_size)
        return SpanCorruptionDataset(ids, lengths, noise, tokenizer, order)

    @property
    def sentinel_ids(self) -> list[int]:
        """Ids of the sentinels, whose loss an evaluation reports separately."""
        return self.tokenizer.sentinel_ids
