"""Masking of tokens for masked language models, and corruption of spans for encoder-decoders.

Source: Devlin et al. 2019, section 3.1 (masking); Raffel et al. 2019, section 3.1.4 (spans).
Shapes: B sequences, T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fourfold.core.validation import check_range
from fourfold.data.loading.batches import MaskedBatch
from fourfold.data.loading.counter_rng import uniform
from fourfold.losses import IGNORE_INDEX
from fourfold.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True)
class MaskingConfig:
    """Options of masking, named as in transformers' `DataCollatorForLanguageModeling` and BERT.

    Args:
        mlm_probability: Share of the tokens of a sequence, special tokens excluded, that are
            targets.
        whole_words: Select whole words; `mlm_probability` remains a share of the tokens.
        dupe_factor: Number of different masks of each sequence, such as 10 in BERT. The epochs use
            these masks in turn (static masking). 0 means new masks in every epoch (dynamic masking,
            Liu et al. 2019).
        mask_replace_prob: Probability that the mask token replaces a target in the input.
        random_replace_prob: Probability that a random token replaces a target in the input. The
            other targets keep their original token.
    """

    mlm_probability: float = 0.15
    whole_words: bool = False
    dupe_factor: int = 0
    mask_replace_prob: float = 0.8
    random_replace_prob: float = 0.1


class Masking:
    """Callable that selects the targets of a batch and masks them, for masked language models.

    A target is a token to predict. The input has the mask token, a random token or the original
    token in its place. Special tokens are never targets, and a random token is never special. The
    masks of a sequence depend only on seed, epoch and index of the sequence in the split.

    Raises:
        InputError: If an option is out of range.
    """

    def __init__(self, config: MaskingConfig, tokenizer: Tokenizer, seed: int) -> None:
        check_range("masking.mlm_probability", config.mlm_probability, above=0.0, below=1.0)
        replaced = config.mask_replace_prob + config.random_replace_prob
        check_range(
            "masking.mask_replace_prob + random_replace_prob", replaced, minimum=0.0, maximum=1.0
        )
        self.config = config
        self.tokenizer = tokenizer
        self.seed = seed
        self.mask_id: Any = tokenizer.mask_id  # not None in the DataModules with masks
        self.is_special = np.zeros(tokenizer.vocab_size, bool)
        self.is_special[tokenizer.special_ids] = True
        self.ordinary_ids = np.flatnonzero(~self.is_special)

    def mask_epoch(self, epoch: int) -> int:
        """Return the index of the epoch whose masks are used in `epoch`."""
        return epoch % self.config.dupe_factor if self.config.dupe_factor else epoch

    def __call__(
        self, ids: np.ndarray, rows: np.ndarray, epoch: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Select the targets of a batch, and replace tokens in its input.

        Args:
            ids: (B, T) token ids, with special tokens and padding.
            rows: (B,) indices of the sequences in the split.
            epoch: Index of the epoch, from 0.

        Returns:
            Input ids (B, T) after masking, and targets (B, T). The targets are the original ids at
            the selected positions, and IGNORE_INDEX at all other positions.
        """
        config = self.config
        epoch = self.mask_epoch(epoch)
        # One stream of random numbers for each random choice.
        order, action, token = (
            uniform(self.seed, epoch, rows, ids.shape[1], stream) for stream in (1, 2, 3)
        )
        if config.whole_words:
            words = self.tokenizer.word_starts(ids).cumsum(1) - 1  # (B, T)
            order = np.take_along_axis(order, words, 1)
        is_target = _select(~self.is_special[ids], order, config.mlm_probability)
        targets = np.where(is_target, ids, IGNORE_INDEX)
        random_ids = self.ordinary_ids[(token * len(self.ordinary_ids)).astype(np.int64)]
        replacements = np.where(action < config.mask_replace_prob, self.mask_id, random_ids)
        is_replaced = action < config.mask_replace_prob + config.random_replace_prob
        return np.where(is_target & is_replaced, replacements, ids), targets


def _select(allowed: np.ndarray, order: np.ndarray, fraction: float) -> np.ndarray:
    """Select the allowed tokens (B, T) with the smallest random numbers of each sequence.

    `fraction` of the allowed tokens are selected, but at least one; tokens of equal random numbers
    form a word, which is selected completely or not at all.
    """
    # Words are taken in the order of their random numbers until `n_selected` tokens are selected.
    # If the last word has more tokens than are missing, it is selected if more than half of its
    # tokens are missing. If exactly half are missing, a bit of the word's random number decides.
    n_selected = np.maximum(1, np.round(allowed.sum(1) * fraction))[:, None]  # (B, 1)
    order = np.where(allowed, order, 2.0)  # other tokens are sorted after all allowed tokens
    ranks = order.argsort(1, kind="stable")
    ascending = np.take_along_axis(order, ranks, 1)
    rank = np.arange(order.shape[1])
    starts_word = np.ones(order.shape, bool)
    starts_word[:, 1:] = ascending[:, 1:] != ascending[:, :-1]
    begin = np.maximum.accumulate(np.where(starts_word, rank, 0), 1)  # first rank of the word
    next_begin = np.where(np.roll(starts_word, -1, 1), rank + 1, order.shape[1])
    end = np.minimum.accumulate(next_begin[:, ::-1], 1)[:, ::-1]  # rank after the word
    middle = (begin + end) / 2
    coin = (ascending * 1024) % 1 < 0.5  # the same for all tokens of a word
    fits = (middle < n_selected) | ((middle == n_selected) & coin) | (begin == 0)
    selected = np.empty(order.shape, bool)
    np.put_along_axis(selected, ranks, fits, 1)
    return selected & allowed


def masked_batch(
    masking: Masking,
    ids: np.ndarray,
    mask: np.ndarray,
    rows: np.ndarray,
    epoch: int,
    position: int,
    block_cross_document_attention: bool = False,
) -> MaskedBatch:
    """Mask tokens of padded sequences, and return the batch for masked language modelling.

    With `block_cross_document_attention`, the batch has the index of each token's document, which
    is the number of EOS tokens before the token in its sequence.
    """
    inputs, targets = masking(ids, rows, epoch)
    documents = None
    if block_cross_document_attention:
        ends = ((ids == masking.tokenizer.eos_id) & mask).astype(np.int64)
        documents = torch.from_numpy(ends.cumsum(1) - ends)
    return MaskedBatch(
        torch.from_numpy(inputs),
        torch.from_numpy(targets),
        None,
        None if mask.all() else torch.from_numpy(mask),
        documents,
        target_positions=torch.from_numpy(np.flatnonzero(targets != IGNORE_INDEX)),
        epoch=epoch,
        position=position,
    )


def count_noise(length: int, noise_density: float, mean_span_length: float) -> tuple[int, int]:
    """Return the number of noise tokens and of noise spans in a sequence of `length` tokens.

    The numbers are those of T5's `random_spans_noise_mask`; halves are rounded to even numbers.

    Example:
        >>> count_noise(12, 0.3, 2.0)
        (4, 2)
    """
    n_noise = min(max(round(length * noise_density), 1), length - 1)
    return n_noise, min(max(round(n_noise / mean_span_length), 1), length - n_noise)


def span_lengths(
    max_len: int, noise_density: float, mean_span_length: float
) -> tuple[int, int, int]:
    """Return the lengths of the sequences that give inputs of at most `max_len` tokens.

    As in T5's `random_spans_helper`, they are the largest number of tokens before corruption, and
    the numbers of input and target tokens after it, with an EOS each.

    Example:
        >>> span_lengths(512, 0.15, 3.0)
        (568, 512, 114)
    """

    def corrupted(length: int) -> tuple[int, int, int]:
        n_noise, n_spans = count_noise(length, noise_density, mean_span_length)
        return length, length - n_noise + n_spans + 1, n_noise + n_spans + 1

    length = max_len - 1
    while corrupted(length + 1)[1] <= max_len:
        length += 1
    return corrupted(length)


def noise_mask(
    length: int, n_noise: int, n_spans: int, draws: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    """Mark the noise tokens of a sequence, a bool array (length,).

    Spans of ordinary and of noise tokens alternate, beginning with ordinary tokens. `draws` are at
    least `length` - 1 random numbers for the ordinary and for the noise spans. All divisions into
    `n_spans` spans of at least one token are equally probable.
    """
    sizes = []
    for total, numbers in zip((length - n_noise, n_noise), draws, strict=True):
        cuts = np.sort(numbers[: total - 1].argsort(kind="stable")[: n_spans - 1]) + 1
        sizes.append(np.diff(cuts, prepend=0, append=total))
    return np.repeat(np.arange(2 * n_spans) % 2 == 1, np.stack(sizes, 1).ravel())


def replace_spans(ids: np.ndarray, mask: np.ndarray, sentinels: Sequence[int]) -> np.ndarray:
    """Replace each span of tokens where `mask` is True by one sentinel, in their order.

    Example:
        >>> mask = np.array([True, True, False, False, True, False])
        >>> replace_spans(np.arange(10, 16), mask, range(999, 900, -1))
        array([999,  12,  13, 998,  15])
    """
    starts = mask & ~np.concatenate([[False], mask[:-1]])
    numbers = np.maximum(starts.cumsum() - 1, 0)
    return np.where(starts, np.asarray(sentinels)[numbers], ids)[starts | ~mask]
