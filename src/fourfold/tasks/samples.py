"""Samples of model outputs for logging: attention maps, token names, predicted classes.

Shapes: B rows, T tokens, K classes.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fourfold.loggers.media import AttentionMaps
from fourfold.models.analysis.attention_maps import attention_maps
from fourfold.tokenization.tokenizer import Tokenizer

MAX_TOKENS = 24  # along one side of an attention map
MAX_LAYERS = 6  # side by side in a figure


def shortest_row(batch: Any) -> Any:
    """Return the shortest row of a batch, without padding and with at most MAX_TOKENS tokens.

    Args:
        batch: A batch with `ids` (B, T). Each tensor (B, T) in the batch is cut to the same tokens.
    """
    mask = getattr(batch, "mask", None)
    if mask is None:
        mask = torch.ones_like(batch.ids, dtype=torch.bool)
    row = int(mask.sum(1).argmin())
    positions = mask[row].nonzero()[:MAX_TOKENS, 0]
    fields = {}
    for name, value in batch._asdict().items():
        if isinstance(value, Tensor) and len(value) == len(mask):
            has_tokens = value.shape[:2] == mask.shape
            fields[name] = value[row, positions][None] if has_tokens else value[row][None]
    return batch._replace(**fields)


def self_attention(
    model: nn.Module, tokenizer: Tokenizer, batch: Any, forward: Callable[[Any], object]
) -> AttentionMaps:
    """Return the self-attention maps of the shortest row of a batch.

    Args:
        model: The model.
        tokenizer: The tokenizer that names rows and columns.
        batch: A batch with `ids` (B, T), and optionally a `mask`.
        forward: A function that runs the model on a batch with one row.
    """
    row = shortest_row(batch)
    names = token_names(tokenizer, row.ids[0].tolist())
    return layer_maps(attention_maps(model, "attn", lambda: forward(row)), names, names)


def cross_attention(
    model: nn.Module, rows: list[str], columns: list[str], forward: Callable[[], object]
) -> AttentionMaps:
    """Return the cross-attention maps of a decoder.

    Args:
        model: The model.
        rows: Names of the target tokens.
        columns: Names of the source tokens; empty for images.
        forward: A function that runs the model on one row.
    """
    maps = attention_maps(model, "cross_attn", forward)
    return layer_maps(maps, rows, columns, name="decoder layer")


def layer_maps(
    maps: list[Tensor], rows: list[str], columns: list[str], name: str = "layer"
) -> AttentionMaps:
    """Return the attention maps of all layers, or of MAX_LAYERS evenly spaced layers."""
    n_layers = min(len(maps), MAX_LAYERS)
    layers = sorted({round(i * (len(maps) - 1) / max(1, n_layers - 1)) for i in range(n_layers)})
    return AttentionMaps(
        [maps[i] for i in layers], [f"{name} {i + 1}" for i in layers], rows, columns
    )


def token_names(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """Return the tokens of the vocabulary with these ids."""
    return [tokenizer.backend.id_to_token(i) or "" for i in ids]


def prediction_rows(class_names: list[str], labels: Tensor, outputs: Tensor) -> list[list[Any]]:
    """Return the true class, the predicted class and the probability of the latter for each row.

    Args:
        class_names: Names of the classes.
        labels: True classes (B,).
        outputs: Class probabilities (B, K).
    """
    probabilities, predicted = outputs.max(-1)
    rows = zip(labels.tolist(), predicted.tolist(), probabilities.tolist(), strict=True)
    return [[class_names[true], class_names[k], round(p, 4)] for true, k, p in rows]
