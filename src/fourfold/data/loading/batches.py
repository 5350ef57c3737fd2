"""Batch classes (NamedTuples) that DataModules pass to tasks.

Batches are NamedTuples because Lightning cannot move frozen dataclasses to a device. These fields
mean the same in every class:

- `ids`: (B, T) long token ids.
- `mask`: (B, T) bool, True = real token.
- `rows`: (B,) long indices of the examples in the split.
- `epoch`: index of the epoch, from 0.
- `position`: number of batches (micro-batches) of the epoch that all ranks together have processed
  after this batch. It is 12 for the third batch of each of 4 ranks.

A checkpoint stores `epoch` and `position` of the last trained batch. Batches that were prefetched
but not trained are therefore read again after a resume.

Shapes: B examples, S source tokens, T target tokens (or tokens of an example that is not divided
into source and target), C channels, H height, W width, K classes.
"""

from itertools import islice
from typing import Any, NamedTuple

from torch import Tensor


class PairBatch(NamedTuple):
    """Sentence pairs for translation.

    Args:
        src: (B, S) long token ids of the source sentences, each of which ends with EOS.
        tgt: (B, T+1) long token ids of the target sentences, each from BOS to EOS. The decoder's
            input is `tgt` without its last column, and the targets are `tgt` without its first
            column.
    """

    src: Tensor
    tgt: Tensor
    src_mask: Tensor
    tgt_mask: Tensor
    rows: Tensor
    epoch: int = 0
    position: int = 0


class CausalBatch(NamedTuple):
    """Text for causal language modelling; the target of each token is the next token.

    Args:
        targets: (B, T) long token ids, IGNORE_INDEX where there is no target.
        documents: (B, T) long index of each token's document, with which the model prevents
            attention between documents; None if it should not.
        n_bytes: Number of bytes in the text of all targets, for the perplexity per byte.
        n_words: Number of words in the text of all targets, for the perplexity per word.
        prefix: (B, T) bool, True = token that all tokens of its document see; None without such
            tokens.
        weights: (B,) float factor on the loss of each target of a row; None means 1.
    """

    ids: Tensor
    targets: Tensor
    documents: Tensor | None = None
    n_bytes: int = 0
    n_words: int = 0
    prefix: Tensor | None = None
    weights: Tensor | None = None
    epoch: int = 0
    position: int = 0


class MaskedBatch(NamedTuple):
    """Text for masked language modelling; `ids` are the tokens after masking.

    Args:
        targets: (B, T) long original ids of the selected tokens, IGNORE_INDEX at all other tokens.
        segments: (B, T) long, 0 = segment A, 1 = segment B; None for single sequences.
        mask: None = no padding.
        documents: As in `CausalBatch`.
        is_next: (B,) long labels of next-sentence prediction, 1 = B follows A; None without it.
        target_positions: (N,) long indices of the N selected tokens in the flattened (B * T,) ids,
            for models that compute logits only there.
    """

    ids: Tensor
    targets: Tensor
    segments: Tensor | None = None
    mask: Tensor | None = None
    documents: Tensor | None = None
    is_next: Tensor | None = None
    target_positions: Tensor | None = None
    epoch: int = 0
    position: int = 0


class ImageBatch(NamedTuple):
    """Images (B, C, H, W) float, with labels as in `SequenceBatch`, or probabilities (B, K)."""

    images: Tensor
    labels: Tensor
    rows: Tensor
    epoch: int = 0
    position: int = 0


class MaskedImageBatch(NamedTuple):
    """Images (B, C, H, W) float for masked image modelling.

    Args:
        visible: (B, V) long indices of the patches that the encoder sees, ascending. Patches are
            numbered row by row.
    """

    images: Tensor
    visible: Tensor
    rows: Tensor
    epoch: int = 0
    position: int = 0


class SegmentationBatch(NamedTuple):
    """Images (B, C, H, W) float, each with a class for each pixel.

    Args:
        masks: B tensors (height, width) long of class indices, IGNORE_INDEX at pixels without a
            class. In evaluation, a mask has the size of the picture in its file.
    """

    images: Tensor
    masks: list[Tensor]
    rows: Tensor
    epoch: int = 0
    position: int = 0


class SequenceBatch(NamedTuple):
    """Sentences or sentence pairs, each with one label.

    Args:
        labels: (B,) long class indices for classification, float targets for regression; or (B, K)
            float, 1 for each label that an example has.
        segments: (B, T) long, 0 = sentence A, 1 = sentence B.
    """

    ids: Tensor
    labels: Tensor
    segments: Tensor
    mask: Tensor
    rows: Tensor
    epoch: int = 0
    position: int = 0


class TokenBatch(NamedTuple):
    """Sentences with one tag for each word.

    Args:
        labels: (B, T) long, class index of a word's tag at the first token of the word, and
            IGNORE_INDEX at all other tokens.
    """

    ids: Tensor
    labels: Tensor
    mask: Tensor
    rows: Tensor
    epoch: int = 0
    position: int = 0


class SpanBatch(NamedTuple):
    """Questions, each with a window of its context.

    Args:
        starts: (B,) long index of the first token of the answer; 0, the index of BOS, if the window
            does not contain the answer.
        ends: (B,) long index of the last token of the answer; 0 as in `starts`.
        segments: (B, T) long, 0 = question, 1 = context.
        context: (B, T) bool, True at the tokens of the context, where an answer may begin or end.
    """

    ids: Tensor
    starts: Tensor
    ends: Tensor
    segments: Tensor
    mask: Tensor
    context: Tensor
    rows: Tensor
    epoch: int = 0
    position: int = 0


class CaptionBatch(NamedTuple):
    """Images (B, C, H, W) float, each with one text from BOS to EOS."""

    images: Tensor
    ids: Tensor
    mask: Tensor
    rows: Tensor
    epoch: int = 0
    position: int = 0


class DocumentBatch(NamedTuple):
    """Documents of several sentences, each document with one label (B,).

    Args:
        ids: (N, T) long word ids of the sentences of all documents, one document after the other.
        n_words: Number of words of each of the N sentences.
        n_sentences: Number of sentences of each of the B documents.
    """

    ids: Tensor
    labels: Tensor
    n_words: tuple[int, ...]
    n_sentences: tuple[int, ...]
    rows: Tensor
    epoch: int = 0
    position: int = 0

    def documents(self) -> list[list[list[int]]]:
        """Return the word ids of each sentence of each document, without padding."""
        sentences = (row[:n] for row, n in zip(self.ids.tolist(), self.n_words, strict=True))
        return [list(islice(sentences, count)) for count in self.n_sentences]


def row_range(batch: Any, begin: int, end: int) -> Any:
    """Return a batch with the rows from `begin` to `end`, for any class but `DocumentBatch`."""
    columns = {name: x for name, x in batch._asdict().items() if isinstance(x, Tensor | list)}
    positions = columns.pop("target_positions", None)
    columns = {name: x[begin:end] for name, x in columns.items()}
    if positions is not None:
        first, last = (row * batch.ids.shape[1] for row in (begin, end))
        inside = (positions >= first) & (positions < last)
        columns["target_positions"] = positions[inside] - first
    return batch._replace(**columns)
