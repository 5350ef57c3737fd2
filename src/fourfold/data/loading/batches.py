"""The batches a DataModule hands to a task.

NamedTuples, since Lightning's device transfer refuses frozen dataclasses. Every batch ends with the
place it holds in the run: `epoch`, and `position` = how many batches of the epoch's plan (over all
ranks) are consumed once this one is done. The place travels with the data, so prefetching cannot
disturb a resume.

Legend: B rows, S source tokens, T target tokens or tokens, C channels, H height, W width, K
    classes.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class PairBatch(NamedTuple):
    """Sentence pairs. `src` ends with EOS; `tgt`, from BOS to EOS, is both input and target."""

    src: Tensor  # (B, S) long
    tgt: Tensor  # (B, T+1) long
    src_mask: Tensor  # (B, S) bool, True = real token
    tgt_mask: Tensor  # (B, T+1) bool
    index: Tensor  # type: ignore[assignment]  # (B,) long, rows of the split
    epoch: int = 0
    position: int = 0


class CausalBatch(NamedTuple):
    """Text with the next token as target; `n_bytes` and `n_words` measure the targets' text."""

    ids: Tensor  # (B, T) long
    targets: Tensor  # (B, T) long, IGNORED where nothing is to be predicted
    documents: Tensor | None = None  # (B, T) long, number of the document a token belongs to
    n_bytes: int = 0
    n_words: int = 0
    epoch: int = 0
    position: int = 0


class MaskedBatch(NamedTuple):
    """Text with some tokens hidden. `targets` holds the true token where one is to be predicted."""

    ids: Tensor  # (B, T) long
    targets: Tensor  # (B, T) long, IGNORED elsewhere
    segments: Tensor | None = None  # (B, T) long, 0 = A, 1 = B
    mask: Tensor | None = None  # (B, T) bool, True = real token; None = no padding
    documents: Tensor | None = None  # (B, T) long
    is_next: Tensor | None = None  # (B,) long, 1 = B follows A
    places: Tensor | None = None  # (N,) long, which of the B T places have a target
    epoch: int = 0
    position: int = 0


class ImageBatch(NamedTuple):
    """Images with class numbers, or with class probabilities once images have been mixed."""

    images: Tensor  # (B, C, H, W) float
    labels: Tensor  # (B,) long or (B, K) float
    index: Tensor  # type: ignore[assignment]  # (B,) long, rows of the split
    epoch: int = 0
    position: int = 0


class SequenceBatch(NamedTuple):
    """Sentences or pairs of them, each with a class or a number."""

    ids: Tensor  # (B, T) long
    labels: Tensor  # (B,) long, or float where a number is learned
    segments: Tensor  # (B, T) long, 0 = A, 1 = B
    mask: Tensor  # (B, T) bool, True = real token
    index: Tensor  # type: ignore[assignment]  # (B,) long, rows of the split
    epoch: int = 0
    position: int = 0


class TokenBatch(NamedTuple):
    """Sentences whose words have a class each, written at the first token of the word."""

    ids: Tensor  # (B, T) long
    labels: Tensor  # (B, T) long, IGNORED at other tokens
    mask: Tensor  # (B, T) bool, True = real token
    index: Tensor  # type: ignore[assignment]  # (B,) long, rows of the split
    epoch: int = 0
    position: int = 0


class SpanBatch(NamedTuple):
    """Questions, each with a window of a context that may hold the answer."""

    ids: Tensor  # (B, T) long
    starts: Tensor  # (B,) long, the answer's first token; 0 where the window does not hold it
    ends: Tensor  # (B,) long, its last
    segments: Tensor  # (B, T) long, 0 = question, 1 = context
    mask: Tensor  # (B, T) bool, True = real token
    context: Tensor  # (B, T) bool, True where an answer may stand
    index: Tensor  # type: ignore[assignment]  # (B,) long, rows of the split
    epoch: int = 0
    position: int = 0


class CaptionBatch(NamedTuple):
    """Images with a text each, which runs from BOS to EOS."""

    images: Tensor  # (B, C, H, W) float
    ids: Tensor  # (B, T) long
    mask: Tensor  # (B, T) bool, True = real token
    index: Tensor  # type: ignore[assignment]  # (B,) long, rows of the split
    epoch: int = 0
    position: int = 0
