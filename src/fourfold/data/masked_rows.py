"""Rows of masked language models: stretches of text, or two segments that may belong together.

Legend: B rows, T tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fourfold.core.errors import InputError
from fourfold.data.batch import MaskedBatch
from fourfold.data.datamodule import BatchDataset
from fourfold.data.masking import Masking
from fourfold.data.noise import uniform
from fourfold.data.ragged import Ragged
from fourfold.data.sampler import Plan
from fourfold.data.sentences import Sentences
from fourfold.losses import IGNORED

_PAIRS = 4  # stream of random numbers


def packed(sentences: Sentences, max_len: int, bos_id: int, eos_id: int, *, cross: bool) -> Ragged:
    """Rows of whole sentences (Liu et al. 2019, section 4.2): FULL-SENTENCES, or DOC-SENTENCES.

    Args:
        sentences: the text.
        max_len: most tokens of a row, with BOS and EOS.
        bos_id: begins a row.
        eos_id: ends a row, and a document inside a row.
        cross: whether rows go on over the end of a document.
    """
    borders = sentences.fill(max_len - 2, cross=cross, between=1)
    firsts = np.concatenate([[0], borders])
    ends = np.diff(sentences.document, prepend=sentences.document[0]) != 0
    ends[firsts] = False  # sentences in front of which a document ends inside a row
    starts = sentences.ids.offsets[:-1]
    where = np.concatenate([np.repeat(starts[borders], 2), starts[ends]])
    what = np.concatenate([np.tile([eos_id, bos_id], len(borders)), np.full(ends.sum(), eos_id)])
    inner = np.insert(sentences.ids.ids, where, what)
    flat = np.concatenate([[bos_id], inner, [eos_id]]).astype(np.int32)
    return Ragged.from_lengths(flat, np.add.reduceat(sentences.ids.lengths + ends, firsts) + 2)


class RowDataset(BatchDataset):
    """Rows from BOS to EOS with hidden tokens.

    Args:
        rows: the rows, special tokens in place.
        masking: hides tokens.
        mark_documents: tell the model which tokens belong to one document.
        plan: options of `Plan`.
    """

    def __init__(
        self, rows: Ragged, masking: Masking, *, mark_documents: bool = False, **plan: Any
    ) -> None:
        self.rows, self.masking, self.mark_documents = rows, masking, mark_documents
        self.plan = Plan(rows.lengths, **plan)

    def batch(self, index: np.ndarray, epoch: int, position: int) -> MaskedBatch:
        ids, mask = self.rows.padded(index, self.masking.tokenizer.pad_id)  # (B, T)
        marks = self.mark_documents
        return masked_batch(
            self.masking, ids.numpy(), mask.numpy(), index, epoch, position, mark_documents=marks
        )


def masked_batch(
    masking: Masking,
    ids: np.ndarray,
    mask: np.ndarray,
    index: np.ndarray,
    epoch: int,
    position: int,
    *,
    mark_documents: bool,
) -> MaskedBatch:
    """A batch of rows of text.

    Args:
        masking: hides tokens.
        ids: (B, T), special tokens in place.
        mask: (B, T) bool, True = real.
        index: (B,) row numbers.
        epoch: number of the epoch.
        position: place of the batch in it.
        mark_documents: tell the model which tokens belong to one document, which EOS ends.
    """
    hidden, targets = masking(ids, index, epoch)
    documents = None
    if mark_documents:
        ends = ((ids == masking.tokenizer.eos_id) & mask).astype(np.int64)
        documents = torch.from_numpy(ends.cumsum(1) - ends)
    return MaskedBatch(
        torch.from_numpy(hidden),
        torch.from_numpy(targets),
        None,
        None if mask.all() else torch.from_numpy(mask),
        documents,
        places=_places(targets),
        epoch=epoch,
        position=position,
    )


class SegmentPairDataset(BatchDataset):
    """BOS A EOS B EOS, where B follows A or comes from another document (Devlin et al. 2019, A.2).

    Every epoch cuts a chunk of a document into A and B at another sentence, and decides anew
    whether B is replaced, by sentences that are at least as long. A chunk of one sentence has no B
    of its own, so it always gets a strange one.

    Nothing but what the words say may tell which it is: a chunk goes on over the length of a row,
    as BERT's own do, or rows with a true B would have room left and end where a sentence does.

    Args:
        sentences: the text.
        max_len: most tokens of a row.
        masking: hides tokens.
        single: whether A and B are one sentence each, and not as many as a row holds (Liu et al.
            2019, section 4.2).
        plan: options of `Plan`.

    Raises:
        InputError: fewer than two documents.
    """

    def __init__(
        self,
        sentences: Sentences,
        max_len: int,
        masking: Masking,
        *,
        single: bool = False,
        **plan: Any,
    ) -> None:
        self.sentences, self.room, self.masking = sentences, max_len - 3, masking
        self.single = single
        borders = sentences.pairs() if single else sentences.fill(self.room, cross=False, over=True)
        self.chunks = np.concatenate([[0], borders, [len(sentences)]])
        starts = np.flatnonzero(np.diff(sentences.document, prepend=-1))
        self.documents = np.append(starts, len(sentences))
        if len(starts) < 2:
            raise InputError("Next-sentence prediction needs a split of at least two documents.")
        self.plan = Plan(np.ones(len(self.chunks) - 1, np.int64), **plan)

    @property
    def has_one_shape(self) -> bool:
        return False  # as many tokens as the longest pair has

    @property
    def longest(self) -> int:
        return self.room + 3

    def batch(self, index: np.ndarray, epoch: int, position: int) -> MaskedBatch:
        masking, tokens = self.masking, self.masking.tokenizer
        draws = uniform(masking.seed, masking.epoch(epoch), index, 4, _PAIRS)
        pairs = [self._pair(row, draw) for row, draw in zip(index, draws, strict=True)]
        width = 3 + max(len(a) + len(b) for a, b, _ in pairs)
        ids = np.full((len(pairs), width), tokens.pad_id, np.int64)
        segments = np.zeros_like(ids)
        mask = np.zeros(ids.shape, bool)
        for row, (a, b, _) in enumerate(pairs):
            filled = [tokens.bos_id, *a, tokens.eos_id, *b, tokens.eos_id]
            ids[row, : len(filled)] = filled
            segments[row, len(a) + 2 : len(filled)] = 1
            mask[row, : len(filled)] = True
        hidden, targets = masking(ids, index, epoch)
        return MaskedBatch(
            torch.from_numpy(hidden),
            torch.from_numpy(targets),
            torch.from_numpy(segments),
            None if mask.all() else torch.from_numpy(mask),
            is_next=torch.tensor([int(follows) for _, _, follows in pairs]),
            places=_places(targets),
            epoch=epoch,
            position=position,
        )

    def _pair(self, row: int, draw: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
        """Segments A and B of a chunk, and whether B follows A."""
        begin, end = self.chunks[row], self.chunks[row + 1]
        n_sentences = end - begin
        middle = begin + 1 + int(draw[0] * (n_sentences - 1))
        follows = bool(n_sentences > 1 and draw[1] < 0.5)
        flat, offsets = self.sentences.ids.ids, self.sentences.ids.offsets
        a = flat[offsets[begin] : offsets[middle]]
        if follows:
            b = flat[offsets[middle] : offsets[end]]
        else:
            own = offsets[end] - offsets[middle] or self.room - len(a)
            start, stop = self._elsewhere(int(self.sentences.document[begin]), own, draw[2:])
            b = flat[offsets[start] : offsets[stop]]
        # Cut where the two do not touch: the begin of A and the end of B; the longer one gives way.
        a = a[-max(self.room // 2, self.room - len(b)) :]
        return a, b[: self.room - len(a)], follows

    def _elsewhere(self, document: int, n_tokens: int, draw: np.ndarray) -> tuple[int, int]:
        """A random sentence of another document, and the end of that document or of the tokens."""
        other = int(draw[0] * (len(self.documents) - 2))
        other += other >= document
        first, last = int(self.documents[other]), int(self.documents[other + 1])
        start = first + int(draw[1] * (last - first))
        if self.single:
            return start, start + 1
        offsets = self.sentences.ids.offsets
        stop = int(np.searchsorted(offsets, offsets[start] + n_tokens))
        return start, min(max(stop, start + 1), last)


def _places(targets: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.flatnonzero(targets != IGNORED))
