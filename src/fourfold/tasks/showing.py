"""What the tasks' `show` have in common: rows cut to what fits a picture, and attention maps.

Shapes: B rows, T tokens.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fourfold.callbacks.media import Maps
from fourfold.data.tokenizer import Tokenizer
from fourfold.models.attention_maps import attention_maps

MOST_TOKENS = 24  # at the side of a picture
MOST_LAYERS = 6  # beside each other


def one_row(batch: Any) -> Any:
    """The shortest row of a batch with `ids` (B, T), without padding and cut to a picture's size.

    Every part that lies along the tokens is cut with it.
    """
    mask = getattr(batch, "mask", None)
    if mask is None:
        mask = torch.ones_like(batch.ids, dtype=torch.bool)
    row = int(mask.sum(1).argmin())
    places = mask[row].nonzero()[:MOST_TOKENS, 0]
    parts = {}
    for name, value in batch._asdict().items():
        if isinstance(value, Tensor) and len(value) == len(mask):
            along = value.shape[:2] == mask.shape
            parts[name] = value[row, places][None] if along else value[row][None]
    return batch._replace(**parts)


def self_attention(
    model: nn.Module, tokenizer: Tokenizer, batch: Any, forward: Callable[[Any], object]
) -> Maps:
    """Which tokens the layers look at in one row of a batch.

    Args:
        model: The model.
        tokenizer: Names the tokens.
        batch: Has `ids` (B, T), and perhaps a `mask`.
        forward: Runs the model on such a batch.
    """
    row = one_row(batch)
    words = token_names(tokenizer, row.ids[0].tolist())
    return layers(attention_maps(model, "attn", lambda: forward(row)), words, words)


def cross_attention(
    model: nn.Module, rows: list[str], columns: list[str], forward: Callable[[], object]
) -> Maps:
    """Where the layers of a decoder look in what the encoder read."""
    maps = attention_maps(model, "cross_attn", forward)
    return layers(maps, rows, columns, name="decoder layer")


def layers(maps: list[Tensor], rows: list[str], columns: list[str], name: str = "layer") -> Maps:
    """Maps of all layers, or of some from the first to the last where there are many."""
    n = min(len(maps), MOST_LAYERS)
    chosen = sorted({round(i * (len(maps) - 1) / max(1, n - 1)) for i in range(n)})
    return Maps([maps[i] for i in chosen], [f"{name} {i + 1}" for i in chosen], rows, columns)


def token_names(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """How the tokenizer writes each token."""
    return [tokenizer.core.id_to_token(i) or "" for i in ids]


def class_rows(classes: list[str], labels: Tensor, outputs: Tensor) -> list[list[Any]]:
    """True class, predicted class and its probability for labels (B,) and outputs (B, K)."""
    best, guessed = outputs.max(-1)
    found = zip(labels.tolist(), guessed.tolist(), best.tolist(), strict=True)
    return [[classes[true], classes[k], round(p, 4)] for true, k, p in found]
