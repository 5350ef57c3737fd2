"""Functions that join one or two texts with special tokens: BOS A EOS, or BOS A EOS B EOS.

Shapes: B sequences of a batch, T tokens.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fourfold.data.loading.ragged import RaggedArray
from fourfold.tokenization.tokenizer import Tokenizer


def n_special_tokens(n_texts: int, n_separators: int) -> int:
    """Return the number of special tokens of a sequence BOS A EOS or BOS A EOS B EOS."""
    return 2 + n_separators * (n_texts - 1)


def join_segments(
    columns: Sequence[RaggedArray], tokenizer: Tokenizer, max_len: int, n_separators: int
) -> tuple[RaggedArray, np.ndarray]:
    """Join single texts to sequences BOS A EOS, or pairs of texts to sequences BOS A EOS B EOS.

    Texts are truncated at their ends so that a sequence has at most `max_len` tokens. In a pair,
    one token after another is removed from the text that is then longer, as in BERT. `columns` has
    one array for single texts, or two for pairs, and `n_separators` is the number of EOS tokens
    between A and B: 1 (BERT) or 2 (RoBERTa).

    Returns:
        Token ids of each sequence, and number of tokens of segment A in each. In a pair, BOS and
        every EOS before B belong to segment A.
    """
    bos = tokenizer.bos_id
    eos = tokenizer.eos_id
    max_tokens = max_len - n_special_tokens(len(columns), n_separators)
    if len(columns) == 1:
        rows = columns[0].truncate(max_tokens).wrap(bos, eos)
        return rows, rows.lengths
    a_lengths, b_lengths = (column.lengths for column in columns)
    a_lengths = np.minimum(a_lengths, np.maximum(max_tokens - b_lengths, (max_tokens + 1) // 2))
    b_lengths = np.minimum(b_lengths, max_tokens - a_lengths)
    a = columns[0].truncate(a_lengths).wrap(bos, eos)
    b = columns[1].truncate(b_lengths).wrap(eos if n_separators == 2 else None, eos)
    return a.concat_rows(b), a.lengths + (n_separators - 1)


def segment_ids(first_lengths: np.ndarray, mask: Tensor) -> Tensor:
    """Return the segment of each token, (B, T) long: 0 for A and for padding, 1 for B.

    `first_lengths` (B,) are the numbers of tokens of segment A, and `mask` (B, T) is False at
    padding.
    """
    is_second = torch.arange(mask.shape[1]) >= torch.from_numpy(first_lengths)[:, None]
    return (is_second & mask).long()
