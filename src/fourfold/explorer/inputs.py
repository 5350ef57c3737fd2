"""Example: one input of the page, from texts and image files or from a batch of test data.

Shapes: T tokens, C channels, H height, W width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fourfold.errors import InputError
from fourfold.loggers.samples import is_byte_level, token_names
from fourfold.models.analysis.attention_maps import Array
from fourfold.models.base import Model
from fourfold.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True)
class Example:
    """One input of a model.

    Args:
        title: Name of the input.
        ids: Ids of the tokens, special tokens included; of the source, for an encoder-decoder.
        target: Ids of the target's tokens after the start token; None if the model generates it.
        segments: Segment (0 or 1) of each token; None means all 0.
        truth: True token at each masked position.
        image: Input (C, H, W) of an image model.
        picture: Pixels (H, W, C) uint8 of the image.
        sentences: Word ids of each sentence of a document.
    """

    title: str
    ids: Sequence[int] = ()
    target: Sequence[int] | None = None
    segments: Sequence[int] | None = None
    truth: Mapping[int, int] = field(default_factory=dict)
    image: Tensor | None = None
    picture: Array | None = None
    sentences: Sequence[Sequence[int]] = ()


def tokenizer_of(model: Model) -> Tokenizer:
    """Return the tokenizer of a model.

    Raises:
        InputError: The checkpoint was imported from weights without a tokenizer.
    """
    if model.tokenizer is None:
        problem = "has no tokenizer: it was imported from weights without one"
        raise InputError(problem, option="the checkpoint")
    return model.tokenizer


def longest_input(model: Model) -> int | None:
    """Return the largest number of tokens that a model reads, or None for no limit."""
    limits = (getattr(model.config, "max_len", None), model.artifacts.get("max_len"))
    return min((limit for limit in limits if limit is not None), default=None)


def fit(ids: list[int], limit: int | None, truncate: bool, n_special: int = 0) -> list[int]:
    """Return the ids of a text that is short enough, without its end if `truncate` is set.

    Args:
        ids: Token ids without special tokens.
        limit: Number of tokens that the model reads; None means any number.
        truncate: Remove tokens at the end of a text that is too long.
        n_special: Number of special tokens that are added later.

    Raises:
        InputError: The text is too long, and `truncate` is False.
    """
    n_tokens = len(ids) + n_special
    if limit is None or n_tokens <= limit:
        return ids
    if not truncate:
        problem = f"has {n_tokens} tokens, but the model reads {limit}; --truncate shortens it"
        raise InputError(problem, option="the text")
    return ids[: limit - n_special]


def token_texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    r"""Return the text of each token, with its leading space; \xE2 for an incomplete character."""
    names = token_names(tokenizer, ids, _decode)
    if is_byte_level(tokenizer):
        return names
    special = set(tokenizer.special_ids)
    return [x if i in special else x.replace("▁", " ") for x, i in zip(names, ids, strict=True)]


def _decode(encoded: bytes) -> str:
    try:
        return encoded.decode()
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02X}" for byte in encoded)


def word_numbers(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """Return the index of the word that each token belongs to, from 0."""
    starts = tokenizer.word_starts(np.asarray(ids, np.int64))
    return [int(i) for i in np.cumsum(starts) - 1]


def special_positions(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """Return the indices of special tokens, masks excluded."""
    hidden = set(tokenizer.special_ids) - {tokenizer.mask_id}
    return [position for position, i in enumerate(ids) if i in hidden]


def short_title(text: str, width: int = 80) -> str:
    """Return a text in one line, cut to `width` characters."""
    line = " ".join(text.split()) or "(empty)"
    return line if len(line) <= width else f"{line[: width - 1]}…"


def real_rows(batch: Any, limit: int) -> list[dict[str, Any]]:
    """Return the fields `ids`, `segments` and `targets` of each row, without padding.

    Args:
        batch: The batch.
        limit: Largest number of tokens of a row. Of several packed documents, only the first is
            kept.
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
