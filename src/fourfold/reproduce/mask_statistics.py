"""What masking does to real rows, counted: shares of BERT's Table 8, and how often masks repeat.

Shapes: B rows, T tokens.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from fourfold.data.masking import Masking, MaskingConfig
from fourfold.data.tokenizer import Tokenizer
from fourfold.data.tokenizer_training import TokenizerConfig, train_tokenizer
from fourfold.losses import IGNORED

ROWS, WIDTH = 2000, 512
ALPHABET = "abcdefghijklmnopqrstuvwxyz"


@cache
def _tokenizer() -> Tokenizer:
    """Of letters, at the start of a word and inside, and the five special tokens."""
    words = [" ".join(a + b for b in ALPHABET) for a in ALPHABET]
    return train_tokenizer(TokenizerConfig("wordpiece", 2 * len(ALPHABET) + 5), words, mask=True)


def _rows(n: int, width: int) -> np.ndarray:
    """Ids (B, T) of ordinary tokens."""
    tokenizer = _tokenizer()
    ordinary = np.setdiff1d(np.arange(tokenizer.vocab_size), tokenizer.special_ids)
    return np.random.default_rng(0).choice(ordinary, (n, width))


def shares(masking: Mapping[str, Any]) -> dict[str, float]:
    """Of the hidden tokens, measured: those that became the mask, stayed, or became another."""
    ids = _rows(ROWS, WIDTH)
    mask = Masking(MaskingConfig(**masking), _tokenizer(), seed=0)
    read, targets = mask(ids, np.arange(ROWS), 0)
    chosen = targets != IGNORED
    masked, same = read[chosen] == mask.mask_id, read[chosen] == ids[chosen]
    # A random token may be the old one; as often as that happens, another stood for staying.
    n_words = len(mask.ordinary)
    changed = (~masked & ~same).mean() * n_words / (n_words - 1)
    return {
        "mask": float(masked.mean()),
        "random": float(changed),
        "same": float(1.0 - masked.mean() - changed),
    }


def distinct_masks(masking: Mapping[str, Any], epochs: int) -> int:
    """How many different masks one row gets in so many epochs."""
    ids = _rows(1, WIDTH)
    mask = Masking(MaskingConfig(**masking), _tokenizer(), seed=0)
    return len({mask(ids, np.zeros(1, int), epoch)[1].tobytes() for epoch in range(epochs)})
