"""Batch classes (NamedTuples) that DataModules pass to tasks, with the shape of each field.

Batches are NamedTuples because Lightning cannot move frozen dataclasses to a device. A comment at
each field gives its shape. The last two fields of every batch say how far training is once the step
with this batch is done. `epoch` is the number of the epoch, and `position` is the number of batches
of this epoch that are trained by then, counted over all ranks. Since each batch carries these two
numbers, prefetching cannot disturb a resume.

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
    """Text for masked language modelling.

    `targets` holds the original token at each position that was selected for prediction, and
    IGNORE_INDEX at all other positions. `target_positions` holds the indices of the selected
    positions, for models that compute logits only there. `documents` is given if attention between
    documents is blocked, and `is_next` if the task is next-sentence prediction.
    """

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

    The label of a word's first token is the class number of the word's tag. All other tokens have
    the label IGNORE_INDEX.
    """

    ids: Tensor  # (B, T) long
    labels: Tensor  # (B, T) long, IGNORE_INDEX at other tokens
    mask: Tensor  # (B, T) bool, True = real token
    rows: Tensor  # (B,) long, numbers of the examples in the split
    epoch: int = 0
    position: int = 0


class SpanBatch(NamedTuple):
    """Questions, each with a window of its context.

    `starts` and `ends` are the indices of the first and the last token of the answer. Both are 0,
    the index of BOS, if the window does not contain the answer. `context` is True at the tokens of
    the context.
    """

    ids: Tensor  # (B, T) long
    starts: Tensor  # (B,) long
    ends: Tensor  # (B,) long
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
