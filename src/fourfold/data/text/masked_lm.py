"""MaskedTextData: DataModule for masked LMs, with datasets of packed sentences and of pairs.

Shapes: B sequences, T tokens of the longest sequence.
"""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch

from fourfold.core.validation import check_choice, check_range
from fourfold.data.loading.batches import MaskedBatch
from fourfold.data.loading.counter_rng import uniform
from fourfold.data.loading.datamodule import BatchedDataset
from fourfold.data.loading.length_bucketing import LengthBucketedOrder
from fourfold.data.loading.ragged import RaggedArray
from fourfold.data.readers.splits import Source
from fourfold.data.readers.text_table import TextTable
from fourfold.data.readers.truncation import limit_lengths
from fourfold.data.text.base import DocumentDataModule
from fourfold.data.text.masking import Masking, MaskingConfig
from fourfold.data.text.segments import join_segments, segment_ids
from fourfold.data.text.sentence_packing import SentenceBreak, Sentences
from fourfold.errors import InputError
from fourfold.losses import IGNORE_INDEX
from fourfold.tokenization.tokenizer import Tokenizer

_PAIR_STREAM = 4  # stream of the counter-based random numbers; Masking uses 1 to 3


def pack_sentences(
    sentences: Sentences, max_len: int, tokenizer: Tokenizer, *, cross_documents: bool
) -> RaggedArray:
    """Pack whole sentences into sequences from BOS to EOS (Liu et al. 2019, section 4.2).

    Args:
        sentences: Encoded sentences of all documents.
        max_len: Maximum number of tokens of a sequence, BOS and EOS included.
        tokenizer: Tokenizer with BOS and EOS. An EOS also separates two documents of a sequence.
        cross_documents: Let a sequence contain sentences of several documents (FULL-SENTENCES);
            otherwise all sentences of a sequence are of one document (DOC-SENTENCES).

    Returns:
        Token ids of each sequence.
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
    """Dataset of text sequences from BOS to EOS, whose tokens are masked when a batch is made.

    Args:
        rows: Token ids of each sequence before masking, special tokens included.
        masking: Function that selects the targets and masks them.
        order: Division of the sequences into batches.
        block_cross_document_attention: Put the document number of each token into the batches, so
            that the model can prevent attention between documents.
    """

    rows: RaggedArray
    masking: Masking
    order: LengthBucketedOrder
    block_cross_document_attention: bool = False

    def batch(self, rows: np.ndarray, epoch: int, position: int) -> MaskedBatch:
        ids, mask = self.rows.padded(rows, self.masking.tokenizer.pad_id)  # (B, T)
        block = self.block_cross_document_attention
        return masked_batch(self.masking, ids.numpy(), mask.numpy(), rows, epoch, position, block)


def masked_batch(
    masking: Masking,
    ids: np.ndarray,
    mask: np.ndarray,
    rows: np.ndarray,
    epoch: int,
    position: int,
    block_cross_document_attention: bool = False,
) -> MaskedBatch:
    """Mask tokens of padded sequences, and return the batch for masked language modelling.

    Args:
        masking: Function that selects the targets and masks them.
        ids: (B, T) token ids before masking, special tokens and padding included.
        mask: (B, T) bool, True = real token.
        rows: (B,) numbers of the sequences in the split, from which the masks are computed.
        epoch: Number of the epoch.
        position: Number of batches of the epoch, over all ranks, that are trained once the step
            that contains this batch is done.
        block_cross_document_attention: Put the document number of each token into the batch. The
            document number of a token is the number of EOS tokens before it in its sequence.
    """
    inputs, targets = masking(ids, rows, epoch)
    documents = None
    if block_cross_document_attention:
        ends = ((ids == masking.tokenizer.eos_id) & mask).astype(np.int64)
        documents = torch.from_numpy(ends.cumsum(1) - ends)
    return MaskedBatch(
        torch.from_numpy(inputs),
        torch.from_numpy(targets),
        None,
        None if mask.all() else torch.from_numpy(mask),
        documents,
        target_positions=torch.from_numpy(np.flatnonzero(targets != IGNORE_INDEX)),
        epoch=epoch,
        position=position,
    )


class SegmentPairDataset(BatchedDataset):
    """Dataset of pairs BOS A EOS B EOS for next-sentence prediction (Devlin et al. 2019, A.2).

    A pair is made from a chunk, which is several consecutive sentences of one document. A random
    boundary between two sentences of the chunk divides the chunk into the segments A and B. With a
    probability of one half, B is then replaced by consecutive sentences of another document. These
    sentences have at least as many tokens as the replaced B, unless the other document ends
    earlier. A chunk of a single sentence has no continuation, so its segment B is always sampled
    from another document.

    As in BERT's own code, a chunk may become longer than the maximum length by its last sentence.
    The pair is then truncated. If this sentence were left out, pairs in which B follows A would be
    shorter than other pairs, and the model could infer the label from the length.

    Args:
        sentences: Encoded sentences of all documents.
        max_len: Maximum number of tokens of a pair, special tokens included.
        masking: Function that selects the targets and masks them.
        single: Make each segment a single sentence (SENTENCE-PAIR, Liu et al. 2019, section 4.2);
            otherwise a chunk has as many sentences as are needed to reach the maximum length.
        order_options: Keyword arguments of `LengthBucketedOrder`, such as `max_rows` and `seed`.

    Raises:
        InputError: If there are fewer than two documents.
    """

    def __init__(
        self,
        sentences: Sentences,
        max_len: int,
        masking: Masking,
        *,
        single: bool = False,
        **order_options: Any,
    ) -> None:
        self.has_static_shape = False  # a batch is as long as its longest pair
        self.max_length = max_len
        self.sentences = sentences
        self.max_tokens = max_len - 3  # without BOS and two EOS
        self.masking = masking
        self.single = single
        if single:
            borders = sentences.pairs()
        else:
            borders = sentences.pack(self.max_tokens, cross_documents=False, overflow=True)
        self.chunks = np.concatenate([[0], borders, [len(sentences)]])
        starts = np.flatnonzero(np.diff(sentences.document, prepend=-1))
        self.documents = np.append(starts, len(sentences))
        if len(starts) < 2:
            message = "must give each split at least two documents for next-sentence prediction"
            raise InputError(f"{message}, got {len(starts)}", option="documents")
        self.order = LengthBucketedOrder(np.ones(len(self.chunks) - 1, np.int64), **order_options)

    def batch(self, rows: np.ndarray, epoch: int, position: int) -> MaskedBatch:
        masking = self.masking
        numbers = uniform(masking.seed, masking.mask_epoch(epoch), rows, 4, _PAIR_STREAM)
        pairs = [self._pair(row, random) for row, random in zip(rows, numbers, strict=True)]
        a, b, is_next = zip(*pairs, strict=True)
        columns = [RaggedArray.from_rows(a), RaggedArray.from_rows(b)]
        joined, first_lengths = join_segments(columns, masking.tokenizer, self.max_length, 1)
        ids, mask = joined.padded(np.arange(len(rows)), masking.tokenizer.pad_id)  # (B, T)
        batch = masked_batch(masking, ids.numpy(), mask.numpy(), rows, epoch, position)
        return batch._replace(
            segments=segment_ids(first_lengths, mask), is_next=torch.tensor(is_next).long()
        )

    def _pair(self, row: int, random: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
        """Make the segments of one pair.

        Args:
            row: Number of the chunk.
            random: (4,) random numbers in [0, 1) for the choices.

        Returns:
            Token ids of A, token ids of B, and True if B follows A in the document.
        """
        begin, end = self.chunks[row : row + 2]
        middle = begin + 1 + int(random[0] * (end - begin - 1))
        is_next = bool(end - begin > 1 and random[1] < 0.5)
        flat = self.sentences.ids.ids
        offsets = self.sentences.ids.offsets
        a = flat[offsets[begin] : offsets[middle]]
        start, stop = middle, end
        if not is_next:
            n_tokens = offsets[end] - offsets[middle] or self.max_tokens - len(a)
            document = int(self.sentences.document[begin])
            start, stop = self._sample_elsewhere(document, n_tokens, random[2:])
        b = flat[offsets[start] : offsets[stop]]
        # Truncate the beginning of A and the end of B, the longer segment first.
        a = a[-max(self.max_tokens // 2, self.max_tokens - len(b)) :]
        return a, b[: self.max_tokens - len(a)], is_next

    def _sample_elsewhere(
        self, document: int, n_tokens: int, random: np.ndarray
    ) -> tuple[int, int]:
        """Sample consecutive sentences of another document.

        Args:
            document: Number of the document of segment A, of which no sentence is sampled.
            n_tokens: Number of tokens to reach, unless the sampled document ends earlier; ignored
                if each segment is a single sentence.
            random: (2,) random numbers in [0, 1) for the choices.

        Returns:
            Index of the first sentence, and index after the last sentence.
        """
        other = int(random[0] * (len(self.documents) - 2))
        other += other >= document
        first, last = self.documents[other : other + 2].tolist()
        start = first + int(random[1] * (last - first))
        if self.single:
            return start, start + 1
        offsets = self.sentences.ids.offsets
        stop = int(np.searchsorted(offsets, offsets[start] + n_tokens))
        return start, min(max(stop, start + 1), last)


Layout = Literal["full_sentences", "doc_sentences", "segment_pairs", "sentence_pairs", "documents"]
MIN_LEN = 5  # BOS, EOS, a token of each segment, EOS


class MaskedTextData(DocumentDataModule):
    """DataModule for masked language models.

    Validation and test use the same masks each time, so that the losses of different epochs can be
    compared.

    Args:
        source: "builtin" (Python's documentation, no network), "files" (which `train`, `val` and
            `test` name) or "hub" (splits of a Hugging Face dataset).
        sentences: Boundary between sentences: "line" (the end of a line) or "punctuation" (an empty
            line, or white space after a full stop, question mark or exclamation mark).
        max_len: Maximum number of tokens of a sequence, special tokens included.
        layout: Content of a sequence: "full_sentences" (whole sentences, possibly of several
            documents, as in RoBERTa), "doc_sentences" (whole sentences of one document),
            "segment_pairs" (two segments of several sentences with a next-sentence label, as in
            BERT), "sentence_pairs" (two single sentences with a next-sentence label) or "documents"
            (one document). A sentence longer than a sequence is divided, except in the layout
            "documents".
        masking: Options for the selection and replacement of tokens.
        options: Arguments of `DocumentDataModule`.

    Raises:
        InputError: If an option is invalid. `setup` raises the error if text is missing, empty or
            corrupted, or if a split has only one document in the layouts "segment_pairs" and
            "sentence_pairs", which need a segment of another document.
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
