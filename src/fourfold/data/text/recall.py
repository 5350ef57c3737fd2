"""RecallData: synthetic task in which one letter must be recalled at a fixed distance.

Shapes: B examples of a batch, T tokens of an example.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from typing import Any

import numpy as np
import torch

from fourfold.core.validation import check_choice, check_positive
from fourfold.data.loading.batches import CausalBatch
from fourfold.data.loading.datamodule import BatchedDataset
from fourfold.data.loading.length_bucketing import LengthBucketedOrder
from fourfold.data.text.base import TextDataModule
from fourfold.losses import IGNORE_INDEX
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig

QUESTION = "?"


@dataclass(eq=False)
class RecallDataset(BatchedDataset):
    """Dataset of texts of equal length, in which only the last token is a target.

    Args:
        ids: Token ids of all texts, (texts, T + 1).
        order: Division of the texts into batches.
    """

    ids: np.ndarray
    order: LengthBucketedOrder

    @property
    def max_length(self) -> int:
        return self.ids.shape[1] - 1

    def batch(self, rows: np.ndarray, epoch: int, position: int) -> CausalBatch:
        ids = torch.from_numpy(self.ids[rows].astype(np.int64))
        targets = ids[:, 1:].clone()
        targets[:, :-1] = IGNORE_INDEX
        return CausalBatch(ids[:, :-1], targets, None, len(rows), 0, epoch, position)


class RecallData(TextDataModule):
    """DataModule of a recall task for causal language models.

    A text consists of `distance` random letters, a question mark, and the first letter again. Only
    the last letter is a target. The letter to be recalled is `distance` positions before the
    question mark. A model whose predictions do not depend on this position, such as a model with L
    layers and a window w with L (w - 1) < `distance`, is right by chance only.

    Args:
        distance: Number of positions from the letter to the question mark.
        n_letters: Number of different letters, at most 26. A guess is right with probability
            1 / n_letters.
        train_rows: Number of training examples.
        eval_rows: Number of examples of the validation split, and of the test split.
        batch_size: Number of examples in a batch.
        options: Arguments of `TextDataModule`. The examples depend on `seed`.

    Raises:
        InputError: A number is not positive, or there are more than 26 letters.
    """

    batch_class = CausalBatch

    def __init__(
        self,
        distance: int = 16,
        n_letters: int = 8,
        train_rows: int = 8192,
        eval_rows: int = 512,
        batch_size: int = 32,
        **options: Any,
    ) -> None:
        super().__init__(**{"tokenizer": TokenizerConfig(kind="char"), **options})
        check_choice("data.tokenizer.kind", self._tokenizer_config.kind, ("char",))
        check_positive("distance", distance)
        check_positive("n_letters", n_letters, len(ascii_lowercase))
        check_positive("train_rows", train_rows)
        check_positive("eval_rows", eval_rows)
        check_positive("batch_size", batch_size)
        self.distance = distance
        self.letters = ascii_lowercase[:n_letters]
        self.sizes = {"train": train_rows, "val": eval_rows, "test": eval_rows}
        self.batch_size = batch_size

    def read(self) -> dict[str, list[str]]:
        """Generate the texts of each split."""
        return {name: self._texts(name, size) for name, size in self.sizes.items()}

    def _texts(self, name: str, size: int) -> list[str]:
        rng = random.Random(f"{self.seed} {name}")
        words = ["".join(rng.choices(self.letters, k=self.distance)) for _ in range(size)]
        return [word + QUESTION + word[0] for word in words]

    def training_texts(self, raw: Sequence[str]) -> Sequence[str]:
        """Return the training texts, and a text with all letters, for the tokenizer."""
        return [*raw, self.letters]

    def encode(self, name: str, raw: Sequence[str], tokenizer: Tokenizer) -> RecallDataset:
        """Encode the texts of one split.

        Args:
            name: Name of the split: "train", "val" or "test".
            raw: Texts of the split.
            tokenizer: Tokenizer, which must have one token for each character.
        """
        ids = tokenizer.encode_corpus(raw)[0].reshape(len(raw), -1)
        order = self.batch_order(name, np.ones(len(raw)), max_rows=self.batch_size)
        return RecallDataset(ids, order)
