"""Batch classes (NamedTuples) that DataModules pass to tasks, with the shape of each field.

Batches are NamedTuples because Lightning cannot move frozen dataclasses to a device. The last two
fields of every batch are the position in the training data after the batch is trained: `epoch`, and
`position`, the number of batches of that epoch that all ranks together have then trained. Since
each batch carries its position, prefetching cannot disturb a resume.

Shapes: B examples, S source tokens, T target tokens (or tokens of an example that is not divided
    into source and target), C channels, H height, W width, K classes.
"""

from typing import NamedTuple

from torch import Tensor


class PairBatch(NamedTuple):
    """Sentence pairs for translation.

    `src` ends with EOS. `tgt` begins with BOS and ends with EOS; the decoder's input is `tgt`
    without its last column, and the target is `tgt` without its first column.
    """

    src: Tensor  # (B, S) long
    tgt: Tensor  # (B, T+1) long
    src_mask: Tensor  # (B, S) bool, True = real token
    tgt_mask: Tensor  # (B, T+1) bool, True = real token
    rows: Tensor  # (B,) long, numbers of the examples in the split
    epoch: int = 0
    position: int = 0


class CausalBatch(NamedTuple):
    """Text for causal language modelling; the target of each token is the next token.

    `n_bytes` and `n_words` are the numbers of bytes and words in the text of all targets of the
    batch, for perplexity per byte and per word.
    """

    ids: Tensor  # (B, T) long
    targets: Tensor  # (B, T) long, IGNORE_INDEX where there is no target
    documents: Tensor | None = None  # (B, T) long, number of each token's document
    n_bytes: int = 0
    n_words: int = 0
    epoch: int = 0
    position: int = 0


class MaskedBatch(NamedTuple):
    """Text for masked language modelling; targets are the original tokens at selected positions."""

    ids: Tensor  # (B, T) long
    targets: Tensor  # (B, T) long, IGNORE_INDEX where there is no target
    segments: Tensor | None = None  # (B, T) long, 0 = A, 1 = B
    mask: Tensor | None = None  # (B, T) bool, True = real token; None = no padding
    documents: Tensor | None = None  # (B, T) long, number of each token's document
    is_next: Tensor | None = None  # (B,) long, 1 = B follows A
    target_positions: Tensor | None = None  # (N,) long, indices of the N targets in (B * T,)
    epoch: int = 0
    position: int = 0


class ImageBatch(NamedTuple):
    """Images with labels, or with class probabilities after MixUp or CutMix."""

    images: Tensor  # (B, C, H, W) float
    labels: Tensor  # (B,) long or (B, K) float
    rows: Tensor  # (B,) long, numbers of the examples in the split
    epoch: int = 0
    position: int = 0


class SequenceBatch(NamedTuple):
    """Sentences or sentence pairs, each with one label."""

    ids: Tensor  # (B, T) long
    labels: Tensor  # (B,) long for classification, float for regression
    segments: Tensor  # (B, T) long, 0 = A, 1 = B
    mask: Tensor  # (B, T) bool, True = real token
    rows: Tensor  # (B,) long, numbers of the examples in the split
    epoch: int = 0
    position: int = 0


class TokenBatch(NamedTuple):
    """Sentences with one tag for each word.

    The label of a word's first token is the class number of the word's tag.
    """

    ids: Tensor  # (B, T) long
    labels: Tensor  # (B, T) long, IGNORE_INDEX at other tokens
    mask: Tensor  # (B, T) bool, True = real token
    rows: Tensor  # (B,) long, numbers of the examples in the split
    epoch: int = 0
    position: int = 0


class SpanBatch(NamedTuple):
    """Questions, each with a window of its context; the answer may lie outside the window."""

    ids: Tensor  # (B, T) long
    starts: Tensor  # (B,) long, first token of the answer; 0 if it is not in the window
    ends: Tensor  # (B,) long, last token of the answer; 0 if it is not in the window
    segments: Tensor  # (B, T) long, 0 = question, 1 = context
    mask: Tensor  # (B, T) bool, True = real token
    context: Tensor  # (B, T) bool, True where an answer may begin or end
    rows: Tensor  # (B,) long, numbers of the examples in the split
    epoch: int = 0
    position: int = 0


class CaptionBatch(NamedTuple):
    """Images, each with one text from BOS to EOS."""

    images: Tensor  # (B, C, H, W) float
    ids: Tensor  # (B, T) long
    mask: Tensor  # (B, T) bool, True = real token
    rows: Tensor  # (B,) long, numbers of the examples in the split
    epoch: int = 0
    position: int = 0
