"""Statistics of BERT's masking: shares of masked, replaced and kept tokens; distinct masks.

Among the tokens that are selected for prediction, the module measures the shares that are masked,
replaced or kept (BERT, Table 8). It also counts the distinct masks of a sequence over some epochs.

Shapes:
    B sequences, T tokens of a sequence.
"""

from collections.abc import Mapping
from functools import cache
from string import ascii_lowercase
from typing import Any

import numpy as np

from fourfold.data.text.masking import Masking, MaskingConfig
from fourfold.losses import IGNORE_INDEX
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig, train_tokenizer

N_ROWS = 2000  # sequences
LENGTH = 512  # T


@cache
def _tokenizer() -> Tokenizer:
    """Return a WordPiece tokenizer whose vocabulary is single letters and five special tokens."""
    words = [" ".join(a + b for b in ascii_lowercase) for a in ascii_lowercase]
    config = TokenizerConfig("wordpiece", 2 * len(ascii_lowercase) + 5)
    return train_tokenizer(config, words, mask=True)


def _masking(config: Mapping[str, Any], n: int) -> tuple[Masking, np.ndarray]:
    """Return a `Masking` with seed 0, and random int token ids (n, T) without special tokens."""
    mask = Masking(MaskingConfig(**config), _tokenizer(), seed=0)
    return mask, np.random.default_rng(0).choice(mask.ordinary_ids, (n, LENGTH))


def shares(masking: Mapping[str, Any]) -> dict[str, float]:
    """Return the shares of the selected tokens that are masked, random and the same."""
    mask, ids = _masking(masking, N_ROWS)
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
    """Count the distinct masks of one sequence of `LENGTH` tokens over some epochs.

    A mask is the set of positions that are selected for prediction in one epoch.
    """
    mask, ids = _masking(masking, 1)
    return len({mask(ids, np.zeros(1, int), epoch)[1].tobytes() for epoch in range(epochs)})
