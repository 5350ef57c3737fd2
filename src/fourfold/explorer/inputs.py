"""Inputs of a page of attention maps, from texts, image files or a batch of test data.

Shapes: T tokens, C channels, H height, W width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from fourfold.loggers.samples import is_byte_level, token_names
from fourfold.tokenization.tokenizer import Tokenizer


class Hypothesis(NamedTuple):
    """Text that beam search generated."""

    ids: list[int]  # without the start token, up to the end token
    score: float  # log-probability divided by the length penalty


@dataclass(frozen=True)
class Example:
    """One input of a model, whose attention the page shows."""

    title: str
    ids: Sequence[int] = ()  # of the text or the source text, special tokens included
    target: Sequence[int] | None = None  # without the start token; None if not generated (yet)
    hypotheses: Sequence[Hypothesis] = ()  # of beam search, the best one first
    segments: Sequence[int] | None = None  # 0 or 1 for each token; None means 0
    truth: Mapping[int, int] = field(default_factory=dict)  # original id at each masked position
    image: Any = None  # tensor (C, H, W), normalized, as the model reads it
    picture: Any = None  # array (H, W, C) uint8, as the page shows it
    label: int | None = None  # index of the true class of the image
    visible: Sequence[int] = ()  # patches that a masked autoencoder sees, ascending
    sentences: Sequence[Sequence[int]] = ()  # word ids, for a hierarchical attention network


def token_texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    r"""Return the text of each token, with its leading space, for display on the page.

    Bytes of a byte-level token that are no complete character are written as \xe2 and so on.
    """
    names = token_names(tokenizer, ids, lambda encoded: encoded.decode(errors="backslashreplace"))
    if is_byte_level(tokenizer):
        return names
    special = set(tokenizer.special_ids)
    return [x if i in special else x.replace("▁", " ") for x, i in zip(names, ids, strict=True)]


def word_numbers(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """Return the index of the word, as of `Tokenizer.word_starts`, to which each token belongs."""
    return [int(i) for i in np.cumsum(tokenizer.word_starts(np.asarray(ids, np.int64))) - 1]


def short_title(text: str, width: int = 80) -> str:
    """Return a text as one line of at most `width` characters, with "…" if it was shortened."""
    line = " ".join(text.split()) or "(empty)"
    return line if len(line) <= width else f"{line[: width - 1]}…"


def real_rows(batch: Any, limit: int) -> list[dict[str, Any]]:
    """Return the first `limit` ids, segments and targets of each row, without padding.

    Of several documents that are packed into a row, only the first one is kept. A value is None if
    the batch lacks the field.
    """
    mask, documents = getattr(batch, "mask", None), getattr(batch, "documents", None)
    rows = []
    for row in range(len(batch.ids)):
        kept = torch.ones_like(batch.ids[row], dtype=torch.bool) if mask is None else mask[row]
        if documents is not None:
            kept = kept & (documents[row] == documents[row, 0])
        tensors = {name: getattr(batch, name, None) for name in ("ids", "segments", "targets")}
        rows.append(
            {k: None if x is None else x[row][kept][:limit].tolist() for k, x in tensors.items()}
        )
    return rows
