"""Samples of model outputs for logging: attention maps, token names, predicted classes.

Shapes: B examples of a batch, T tokens, K classes.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fourfold.loggers.media import AttentionMaps
from fourfold.tokenization.tokenizer import Tokenizer

MAX_TOKENS = 24  # tokens along one side of an attention map
MAX_LAYERS = 6  # layers side by side in a figure


def shortest_row(batch: Any) -> Any:
    """Return a batch that holds only the shortest example of a batch, without padding.

    The example is truncated to MAX_TOKENS tokens.

    Example:
        >>> from fourfold.data.loading.batches import MaskedBatch
        >>> ids = torch.tensor([[5, 6, 7], [8, 9, 0]])
        >>> shortest_row(MaskedBatch(ids, ids, mask=ids != 0)).ids
        tensor([[8, 9]])
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
    """Return the self-attention maps of the shortest example, means over the heads of a layer.

    Args:
        task: The task, with the attributes `model` and `tokenizer`.
        batch: A batch with the field `ids` (B, T), and optionally `mask` (B, T), True = real token.
        forward: A function that runs the model on a batch with one example.
    """
    from fourfold.analysis.attention_maps import mean_maps  # imports several families

    row = shortest_row(batch)
    names = token_names(task.tokenizer, row.ids[0].tolist())
    return layer_maps(mean_maps(task.model, "attn", lambda: forward(row)), names, names)


def layer_maps(
    maps: list[Tensor], rows: list[str], columns: list[str], name: str = "layer"
) -> AttentionMaps:
    """Return the attention maps of at most MAX_LAYERS layers, which are evenly spaced.

    Args:
        maps: Attention map of each layer, all of one shape (rows, columns).
        rows: Labels of the rows of each map, or an empty list.
        columns: Labels of the columns of each map, or an empty list.
        name: Title of each map, to which the number of the layer is appended, from 1.
    """
    layers = np.linspace(0, len(maps) - 1, min(len(maps), MAX_LAYERS)).round().astype(int)
    return AttentionMaps(
        [maps[i] for i in layers], [f"{name} {i + 1}" for i in layers], rows, columns
    )


def is_byte_level(tokenizer: Tokenizer) -> bool:
    """Return True if each character of a tokenizer's tokens stands for a byte, as in GPT-2."""
    return "ByteLevel" in type(tokenizer.backend.decoder).__name__


def _readable(encoded: bytes) -> str:
    try:
        text = encoded.decode()
    except UnicodeDecodeError:
        return f"<{encoded.hex().upper()}>"
    return text.replace(" ", "␣").replace("\n", "\\n").replace("\t", "\\t")


def token_names(
    tokenizer: Tokenizer, ids: Sequence[int], decode: Callable[[bytes], str] = _readable
) -> list[str]:
    r"""Return a readable name of each token; "" for an id that is not in the vocabulary.

    The name of a token is the token itself, unless the tokenizer is byte-level as in GPT-2, whose
    bytes `decode` converts to a name. A space is then written as "␣" and a line break as "\n".
    Bytes that are no complete character are written in hexadecimal.

    Example:
        >>> from tokenizers import Tokenizer as Backend, decoders, models
        >>> vocab = {"Ġthe": 0, "Ċ": 1, "Ã": 2, "Ã¤": 3, "<|endoftext|>": 4}
        >>> backend = Backend(models.BPE(vocab, []))
        >>> backend.decoder = decoders.ByteLevel()
        >>> token_names(Tokenizer(backend), [0, 1, 2, 3])
        ['␣the', '\\n', '<C3>', 'ä']
    """
    names = [tokenizer.backend.id_to_token(i) or "" for i in ids]
    if not is_byte_level(tokenizer):
        return names
    special = set(tokenizer.special_ids)
    encoded = [None if i in special else token_bytes(x) for x, i in zip(names, ids, strict=True)]
    return [x if part is None else decode(part) for x, part in zip(names, encoded, strict=True)]


@cache
def _byte_values() -> dict[str, int]:
    """Return the byte for which each character of a byte-level token stands."""
    # Printable bytes stand for themselves; the other bytes follow in order from code point 256.
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    values = {chr(byte): byte for byte in printable}
    return values | {chr(256 + number): byte for number, byte in enumerate(others)}


def token_bytes(token: str) -> bytes | None:
    """Return the bytes of a byte-level token; None for one that was added as plain text.

    Example:
        >>> token_bytes("Ġthe"), token_bytes("Ã¤").decode()
        (b' the', 'ä')
    """
    values = _byte_values()
    if not values.keys() >= set(token):
        return None
    return bytes(values[character] for character in token)


def prediction_rows(class_names: Any, labels: Tensor, outputs: Tensor) -> list[list[Any]]:
    """Return true class, predicted class and its probability for each row of outputs (B, K).

    With several labels per example, labels (B, K), the probability is the highest of the row. In a
    regression, where K is 1, a row has the true and the predicted value.
    """
    from fourfold.data.readers.labels import label_text  # language models do not need it

    values, predicted = outputs.cpu().max(-1)
    if outputs.shape[-1] == 1 and labels.ndim == 1:
        return [[x, round(y, 4)] for x, y in zip(labels.tolist(), values.tolist(), strict=True)]
    found = predicted if labels.ndim == 1 else outputs.cpu() > 0.5
    rows = zip(labels.cpu(), found, values.tolist(), strict=True)
    return [[*(label_text(class_names, x) for x in pair), round(p, 4)] for *pair, p in rows]
