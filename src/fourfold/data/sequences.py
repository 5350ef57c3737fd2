"""Sentences and pairs of sentences as rows of ids, each with a label.

Legend: B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fourfold.core.errors import InputError
from fourfold.data.batch import SequenceBatch
from fourfold.data.datamodule import BatchDataset
from fourfold.data.ragged import Ragged
from fourfold.data.sampler import Plan
from fourfold.data.tokenizer import Tokenizer


def join_segments(
    parts: Sequence[Ragged], tokenizer: Tokenizer, max_len: int, separators: int
) -> tuple[Ragged, np.ndarray]:
    """BOS A EOS, or BOS A EOS B EOS; the longer of a pair is cut first, as in BERT's own code.

    Args:
        parts: one or two columns of ids.
        tokenizer: gives the special tokens.
        max_len: most tokens of a row, special ones included.
        separators: EOS between A and B: 1, or RoBERTa's 2.

    Returns:
        The rows, and (rows,) how many tokens of each belong to A, all separators among them.
    """
    bos, eos = tokenizer.bos_id, tokenizer.eos_id
    if len(parts) == 1:
        rows = parts[0].truncate(max_len - 2).wrap(bos, eos)
        return rows, rows.lengths
    room = max_len - 2 - separators
    lengths = [part.lengths for part in parts]
    first = np.minimum(lengths[0], np.maximum(room - lengths[1], (room + 1) // 2))
    second = np.minimum(lengths[1], room - first)
    a = parts[0].truncate(first).wrap(bos, eos)
    b = parts[1].truncate(second).wrap(eos if separators == 2 else None, eos)
    return a.beside(b), a.lengths + (separators - 1)


class SequenceDataset(BatchDataset):
    """One split of labelled rows.

    Args:
        rows: ids.
        first: (rows,) tokens of each that belong to sentence A.
        labels: (rows,) int64, or float32 for a regression.
        pad_id: id of padding.
        plan: options of `Plan`.
    """

    def __init__(
        self, rows: Ragged, first: np.ndarray, labels: np.ndarray, pad_id: int, **plan: Any
    ) -> None:
        if not len(rows) == len(first) == len(labels):
            raise InputError(f"{len(rows)} rows, but {len(labels)} labels.")
        self.rows, self.first, self.labels, self.pad_id = rows, first, labels, pad_id
        self.plan = Plan(rows.lengths, **plan)

    def batch(self, index: np.ndarray, epoch: int, position: int) -> SequenceBatch:
        ids, mask = self.rows.padded(index, self.pad_id)  # (B, T)
        first = torch.from_numpy(self.first[index])[:, None]  # (B, 1)
        segments = ((torch.arange(ids.shape[1]) >= first) & mask).long()
        labels = torch.from_numpy(self.labels[index])
        return SequenceBatch(ids, labels, segments, mask, torch.from_numpy(index), epoch, position)
