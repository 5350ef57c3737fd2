"""Samples of model outputs for logging: attention maps, token names, predicted classes.

Shapes: B examples of a batch, T tokens, K classes.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fourfold.loggers.media import AttentionMaps
from fourfold.models.analysis.attention_maps import attention_maps
from fourfold.tokenization.tokenizer import Tokenizer

MAX_TOKENS = 24  # along one side of an attention map
MAX_LAYERS = 6  # side by side in a figure


def shortest_row(batch: Any) -> Any:
    """Return a batch that holds only the shortest example of a batch, without padding.

    The example is cut to MAX_TOKENS tokens.

    Args:
        batch: A batch with the field `ids` (B, T), and optionally `mask` (B, T), True = real token.

    Returns:
        A batch of the same class, with tensors (1, ...).
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


def self_attention(task: Any, batch: Any, forward: Callable[[Any], object]) -> AttentionMaps:
    """Return the self-attention maps of the shortest example of a batch, cut to MAX_TOKENS tokens.

    Args:
        task: The task, with the attributes `model` and `tokenizer`. The tokens of the tokenizer
            label the rows and columns of the maps.
        batch: A batch with the field `ids` (B, T), and optionally `mask` (B, T), True = real token.
        forward: A function that runs the model on a batch with one example.
    """
    row = shortest_row(batch)
    names = token_names(task.tokenizer, row.ids[0].tolist())
    return layer_maps(attention_maps(task.model, "attn", lambda: forward(row)), names, names)


def layer_maps(
    maps: list[Tensor], rows: list[str], columns: list[str], name: str = "layer"
) -> AttentionMaps:
    """Return the attention maps of at most MAX_LAYERS layers, which are evenly spaced.

    Args:
        maps: The map (rows, columns) of each layer.
        rows: Labels of the rows of each map, or an empty list.
        columns: Labels of the columns of each map, or an empty list.
        name: Title of each map, to which the number of the layer is appended, from 1.
    """
    layers = np.linspace(0, len(maps) - 1, min(len(maps), MAX_LAYERS)).round().astype(int)
    return AttentionMaps(
        [maps[i] for i in layers], [f"{name} {i + 1}" for i in layers], rows, columns
    )


def token_names(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """Return the token of each id; "" for an id that is not in the vocabulary."""
    return [tokenizer.backend.id_to_token(i) or "" for i in ids]


def prediction_rows(class_names: list[str], labels: Tensor, outputs: Tensor) -> list[list[Any]]:
    """Return the rows of a table with the true and the predicted class of each example.

    Args:
        class_names: Names of the classes.
        labels: True class indices (B,).
        outputs: Class probabilities (B, K).

    Returns:
        List with a row for each example. A row has three cells: name of the true class, name of the
        predicted class, and probability of the predicted class.
    """
    probabilities, predicted = outputs.max(-1)
    rows = zip(labels.tolist(), predicted.tolist(), probabilities.tolist(), strict=True)
    return [[class_names[true], class_names[k], round(p, 4)] for true, k, p in rows]
