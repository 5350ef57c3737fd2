"""Statistics of BERT's masking: replacement shares (BERT, Table 8) and number of distinct masks.

Shapes:
    B sequences, T tokens of a sequence.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from fourfold.data.text.masking import Masking, MaskingConfig
from fourfold.losses import IGNORE_INDEX
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig, train_tokenizer

N_ROWS = 2000
LENGTH = 512  # T
ALPHABET = "abcdefghijklmnopqrstuvwxyz"


@cache
def _tokenizer() -> Tokenizer:
    """Return a WordPiece tokenizer whose vocabulary is single letters and five special tokens."""
    words = [" ".join(a + b for b in ALPHABET) for a in ALPHABET]
    return train_tokenizer(TokenizerConfig("wordpiece", 2 * len(ALPHABET) + 5), words, mask=True)


def _random_rows(n: int, length: int) -> np.ndarray:
    """Draw random token ids (n, length) that contain no special tokens."""
    tokenizer = _tokenizer()
    ordinary = np.setdiff1d(np.arange(tokenizer.vocab_size), tokenizer.special_ids)
    return np.random.default_rng(0).choice(ordinary, (n, length))


def shares(masking: Mapping[str, Any]) -> dict[str, float]:
    """Measure the proportions of the replacements among the tokens selected for prediction.

    Args:
        masking: Fields of `MaskingConfig`.

    Returns:
        The shares, which add up to 1, of tokens that are replaced by the mask token ("mask"),
        replaced by a random token ("random"), or kept ("same").
    """
    ids = _random_rows(N_ROWS, LENGTH)
    mask = Masking(MaskingConfig(**masking), _tokenizer(), seed=0)
    inputs, targets = mask(ids, np.arange(N_ROWS), 0)
    chosen = targets != IGNORE_INDEX
    masked = inputs[chosen] == mask.mask_id
    same = inputs[chosen] == ids[chosen]
    # A random token equals the original one with probability 1 / n_tokens.
    n_tokens = len(mask.ordinary_ids)
    changed = (~masked & ~same).mean() * n_tokens / (n_tokens - 1)
    return {
        "mask": float(masked.mean()),
        "random": float(changed),
        "same": float(1.0 - masked.mean() - changed),
    }


def distinct_masks(masking: Mapping[str, Any], epochs: int) -> int:
    """Count the distinct masks of one sequence over some epochs.

    A mask is the set of positions that are selected for prediction.

    Args:
        masking: Fields of `MaskingConfig`.
        epochs: Number of epochs.
    """
    ids = _random_rows(1, LENGTH)
    mask = Masking(MaskingConfig(**masking), _tokenizer(), seed=0)
    return len({mask(ids, np.zeros(1, int), epoch)[1].tobytes() for epoch in range(epochs)})
