"""Inputs of a page of attention maps, from texts, image files or a batch of test data.

Shapes: T tokens, C channels, H height, W width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fourfold.analysis.attention_maps import Array
from fourfold.errors import InputError
from fourfold.layers.base_model import Model
from fourfold.loggers.samples import is_byte_level, token_names
from fourfold.tokenization.tokenizer import Tokenizer


class Hypothesis(NamedTuple):
    """Text that beam search generated.

    Args:
        ids: Token ids without the start token, up to the end token.
        score: Log-probability divided by the length penalty.
    """

    ids: list[int]
    score: float


@dataclass(frozen=True)
class Example:
    """One input of a model, whose attention the page shows.

    Args:
        title: Title of the input on the page.
        ids: Token ids of the text, special tokens included. For an encoder-decoder, these are the
            ids of the source text.
        target: Token ids of the target text or of the generated text, without the start token. None
            if the model has not generated the text yet or does not generate.
        hypotheses: Results of beam search, the best one first, if it generated `target`.
        segments: Segment (0 or 1) of each token; None means segment 0 for all tokens.
        truth: Dictionary from each masked position to the id of the original token.
        image: Normalized image (C, H, W) that an image model reads.
        picture: Pixels (H, W, C) uint8 of the image, which the page displays.
        label: Index of the true class of the image, if the data have it.
        visible: Indices of the patches that a masked autoencoder sees, ascending.
        sentences: List of the word ids of each sentence, for a hierarchical attention network.
    """

    title: str
    ids: Sequence[int] = ()
    target: Sequence[int] | None = None
    hypotheses: Sequence[Hypothesis] = ()
    segments: Sequence[int] | None = None
    truth: Mapping[int, int] = field(default_factory=dict)
    image: Tensor | None = None
    picture: Array | None = None
    label: int | None = None
    visible: Sequence[int] = ()
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
    """Return the largest number of tokens in an input of a model, or None for no limit.

    The number is the smaller one of `max_len` in the config and `max_len` of the training data.
    """
    limits = (getattr(model.config, "max_len", None), model.artifacts.get("max_len"))
    return min((limit for limit in limits if limit is not None), default=None)


def fit(ids: list[int], limit: int | None, truncate: bool, n_special: int = 0) -> list[int]:
    """Check the length of a text, and remove tokens at its end if the text is too long.

    Args:
        ids: Token ids without special tokens.
        limit: Largest number of tokens that the model reads; None means any number.
        truncate: If True, a text that is too long is shortened. If False, it raises InputError.
        n_special: Number of special tokens that are added to the text later.

    Returns:
        The token ids that are left, at most `limit` - `n_special`.

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
    r"""Return the text of each token, with its leading space, for display on the page.

    Bytes of a byte-level token that are no complete character are written as \xE2 and so on.
    """
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
    """Return the index of the word, from 0, to which each token belongs.

    The words are those of `Tokenizer.word_starts`. A special token is a word by itself.
    """
    starts = tokenizer.word_starts(np.asarray(ids, np.int64))
    return [int(i) for i in np.cumsum(starts) - 1]


def special_positions(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """Return the positions in `ids` that hold a special token other than the mask token."""
    hidden = set(tokenizer.special_ids) - {tokenizer.mask_id}
    return [position for position, i in enumerate(ids) if i in hidden]


def short_title(text: str, width: int = 80) -> str:
    """Return a text as one line of at most `width` characters, with "…" if it was shortened."""
    line = " ".join(text.split()) or "(empty)"
    return line if len(line) <= width else f"{line[: width - 1]}…"


def real_rows(batch: Any, limit: int) -> list[dict[str, Any]]:
    """Return the tokens of each row of a batch of texts, without padding.

    If a row holds several packed documents, only the first document is kept.

    Args:
        batch: Batch with the field `ids` (B, T), and optionally with `segments`, `targets`, `mask`
            (True = real token) and `documents` (index of each token's document), all (B, T).
        limit: Largest number of tokens. Further tokens of a row are dropped.

    Returns:
        A dictionary for each row, with the keys `ids`, `segments` and `targets`. A value is a list
        of integers, or None if the batch lacks the field.
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
