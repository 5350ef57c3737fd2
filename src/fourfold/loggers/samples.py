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

    The example is truncated to MAX_TOKENS (24) tokens.

    Args:
        batch: A batch with the field `ids` (B, T), and optionally `mask` (B, T), True = real token.

    Returns:
        A batch of the same class, whose tensors have the shape (1, ...).

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
    """Return the self-attention maps of the shortest example of a batch.

    The example is truncated to MAX_TOKENS (24) tokens. A map is the mean over the heads of a layer.

    Args:
        task: The task, with the attributes `model` and `tokenizer`. The tokens of the tokenizer
            label the rows and columns of the maps.
        batch: A batch with the field `ids` (B, T), and optionally `mask` (B, T), True = real token.
        forward: A function that runs the model on a batch with one example.

    Example:
        >>> from types import SimpleNamespace
        >>> import fourfold
        >>> from fourfold.data.loading.batches import CausalBatch
        >>> from fourfold.tokenization.training import TokenizerConfig, train_tokenizer
        >>> tokenizer = train_tokenizer(TokenizerConfig("char"), ["abc"], mask=False)
        >>> model = fourfold.create("gpt2", n_layers=2, vocab_size=tokenizer.vocab_size).eval()
        >>> ids = torch.tensor([tokenizer.encode("cab")])
        >>> task = SimpleNamespace(model=model, tokenizer=tokenizer)  # or a task
        >>> maps = self_attention(task, CausalBatch(ids, ids), lambda batch: model(batch.ids))
        >>> maps.rows, maps.names, maps.maps[0].shape
        (['c', 'a', 'b'], ['layer 1', 'layer 2'], torch.Size([3, 3]))
    """
    from fourfold.analysis.attention_maps import attention_maps  # imports several families

    row = shortest_row(batch)
    names = token_names(task.tokenizer, row.ids[0].tolist())
    return layer_maps(attention_maps(task.model, "attn", lambda: forward(row)), names, names)


def layer_maps(
    maps: list[Tensor], rows: list[str], columns: list[str], name: str = "layer"
) -> AttentionMaps:
    """Return the attention maps of at most MAX_LAYERS (6) layers, which are evenly spaced.

    Args:
        maps: Attention map of each layer, all of one shape (rows, columns).
        rows: Labels of the rows of each map, or an empty list.
        columns: Labels of the columns of each map, or an empty list.
        name: Title of each map, to which the number of the layer is appended, from 1.

    Example:
        >>> maps = layer_maps([torch.eye(2)] * 12, ["a", "b"], ["a", "b"])  # 12 layers
        >>> maps.names
        ['layer 1', 'layer 3', 'layer 5', 'layer 8', 'layer 10', 'layer 12']
    """
    layers = np.linspace(0, len(maps) - 1, min(len(maps), MAX_LAYERS)).round().astype(int)
    return AttentionMaps(
        [maps[i] for i in layers], [f"{name} {i + 1}" for i in layers], rows, columns
    )


def is_byte_level(tokenizer: Tokenizer) -> bool:
    """Return True if each character of a tokenizer's tokens stands for a byte, as in GPT-2.

    Example:
        >>> from fourfold.tokenization.training import TokenizerConfig, train_tokenizer
        >>> config = TokenizerConfig("byte_bpe", vocab_size=300)
        >>> is_byte_level(train_tokenizer(config, ["abc"], mask=False))
        True
        >>> is_byte_level(train_tokenizer(TokenizerConfig("char"), ["abc"], mask=False))
        False
    """
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

    The name of a token is the token itself, unless the tokenizer is byte-level as in GPT-2. The
    bytes of a byte-level token are decoded. A space is then written as "␣" and a line break as
    "\n". Bytes that are no complete character are written in hexadecimal.

    Args:
        tokenizer: The tokenizer.
        ids: Token ids.
        decode: Function that converts the bytes of a byte-level token to its name.

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
    """Return the bytes of a byte-level token, in which each character stands for a byte.

    The result is None for a token that was added to the vocabulary as plain text.

    Example:
        >>> token_bytes("Ġthe"), token_bytes("Ã¤").decode()
        (b' the', 'ä')
    """
    values = _byte_values()
    if not values.keys() >= set(token):
        return None
    return bytes(values[character] for character in token)


def prediction_rows(class_names: list[str], labels: Tensor, outputs: Tensor) -> list[list[Any]]:
    """Return the rows of a table with the true and the predicted class of each example.

    Args:
        class_names: Names of the classes.
        labels: True class indices (B,).
        outputs: Class probabilities (B, K).

    Returns:
        List with a row for each example. A row has three cells: name of the true class, name of the
        predicted class, and probability of the predicted class.

    Example:
        >>> outputs = torch.tensor([[0.9, 0.1], [0.6, 0.4]])
        >>> prediction_rows(["cat", "dog"], torch.tensor([0, 1]), outputs)
        [['cat', 'cat', 0.9], ['dog', 'cat', 0.6]]
    """
    probabilities, predicted = outputs.max(-1)
    rows = zip(labels.tolist(), predicted.tolist(), probabilities.tolist(), strict=True)
    return [[class_names[true], class_names[k], round(p, 4)] for true, k, p in rows]
