"""Hiding tokens for masked language models (Devlin et al. 2019, section 3.1).

Legend: B rows, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fourfold.core.errors import InputError
from fourfold.data.noise import uniform
from fourfold.data.tokenizer import Tokenizer
from fourfold.losses import IGNORED


@dataclass(frozen=True)
class MaskingConfig:
    """How tokens are hidden.

    Args:
        rate: share of the tokens of a row that are to be predicted.
        whole_words: choose words instead of tokens (the same share of tokens).
        static: 0 = new masks in every epoch (Liu et al. 2019); n = only n different ones in turn,
            as
            BERT's ten copies of the data.
        masked: share of the chosen tokens that become the mask.
        random: share of them that become another token; the rest stays as it is.
    """

    rate: float = 0.15
    whole_words: bool = False
    static: int = 0
    masked: float = 0.8
    random: float = 0.1


class Masking:
    """Chooses tokens, and puts the mask, a random token or nothing new in their place.

    Special tokens are neither chosen nor put in. What happens to a row depends on seed, epoch and
    row number alone, not on the batch it is in.

    Args:
        config: how to choose.
        tokenizer: gives the mask and the special tokens.
        seed: seed of the data.

    Raises:
        InputError: a rate outside (0, 1), or nothing but special tokens in the vocabulary.
    """

    def __init__(self, config: MaskingConfig, tokenizer: Tokenizer, seed: int) -> None:
        if not 0 < config.rate < 1 or config.static < 0:
            raise InputError(
                f"Masking needs 0 < rate < 1 and static >= 0, not rate={config.rate} and"
                f" static={config.static}."
            )
        if not 0 <= config.masked <= config.masked + config.random <= 1:
            raise InputError(
                "Of the hidden tokens, shares masked and random must lie in [0, 1] and so must"
                f" their sum, not masked={config.masked} and random={config.random}."
            )
        if tokenizer.mask_id is None:
            raise InputError("The tokenizer has no mask token.")
        self.config, self.tokenizer, self.seed = config, tokenizer, seed
        self.mask_id = tokenizer.mask_id
        self.is_special = np.zeros(tokenizer.vocab_size, bool)
        self.is_special[tokenizer.special_ids] = True
        self.ordinary = np.flatnonzero(~self.is_special)
        if len(self.ordinary) == 0:
            raise InputError("The vocabulary has nothing but special tokens.")

    def epoch(self, epoch: int) -> int:
        """The epoch whose random numbers are used."""
        return epoch % self.config.static if self.config.static else epoch

    def __call__(
        self, ids: np.ndarray, rows: np.ndarray, epoch: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Hides tokens.

        Args:
            ids: (B, T) with special tokens and padding in place.
            rows: (B,) row numbers.
            epoch: number of the epoch.

        Returns:
            The ids to read and the targets, both (B, T).
        """
        epoch, width = self.epoch(epoch), ids.shape[1]
        order, kind, token = (uniform(self.seed, epoch, rows, width, s) for s in (1, 2, 3))
        if self.config.whole_words:
            words = self.tokenizer.word_starts(ids).cumsum(1) - 1  # (B, T)
            order = np.take_along_axis(order, words, 1)
        chosen = _choose(~self.is_special[ids], order, self.config.rate)
        targets = np.where(chosen, ids, IGNORED)
        random = self.ordinary[(token * len(self.ordinary)).astype(np.int64)]
        masked, changed = self.config.masked, self.config.masked + self.config.random
        replaced = np.where(kind < masked, self.mask_id, random)
        return np.where(chosen & (kind < changed), replaced, ids), targets


def _choose(allowed: np.ndarray, order: np.ndarray, rate: float) -> np.ndarray:
    """The first `rate` of the allowed tokens of each row, in ascending `order`.

    Tokens of equal order (a word) are chosen together or not at all: the last word is in when more
    than half of it fits, and by a coin when half of it does, so that the share is right on average.
    At least one is chosen in each row, which in short ones may be more than the share.
    """
    n_wanted = np.maximum(1, np.round(allowed.sum(1) * rate))[:, None]  # (B, 1)
    order = np.where(allowed, order, 2.0)  # behind all others
    ranks = order.argsort(1, kind="stable")
    ascending = np.take_along_axis(order, ranks, 1)
    place = np.arange(order.shape[1])
    is_new = np.ones(order.shape, bool)
    is_new[:, 1:] = ascending[:, 1:] != ascending[:, :-1]
    first = np.maximum.accumulate(np.where(is_new, place, 0), 1)  # where the own word begins
    following = np.where(np.roll(is_new, -1, 1), place + 1, order.shape[1])
    following[:, -1] = order.shape[1]
    end = np.minimum.accumulate(following[:, ::-1], 1)[:, ::-1]  # where it ends
    middle, coin = (first + end) / 2, (ascending * 1024) % 1 < 0.5  # one for all of a word
    fits = (middle < n_wanted) | ((middle == n_wanted) & coin) | (first == 0)
    chosen = np.empty(order.shape, bool)
    np.put_along_axis(chosen, ranks, fits, 1)
    return chosen & allowed
