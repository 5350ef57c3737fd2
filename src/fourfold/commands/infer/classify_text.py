"""`fourfold classify` for text: classify sentences, or pairs of sentences separated by a tab.

Shapes: B lines of a batch, T tokens, K classes.
"""

from argparse import Namespace
from typing import Any

import numpy as np
import torch

from fourfold.commands.infer.base import TextProcessor, format_classes
from fourfold.commands.infer.line_io import Item
from fourfold.data.loading.batches import SequenceBatch
from fourfold.data.loading.ragged import RaggedArray
from fourfold.data.text.segments import join_segments, n_special_tokens
from fourfold.errors import InputError


class TextClassifier(TextProcessor):
    """Line processor that classifies a sentence or a pair, encoded as in training.

    A model with one output is a regression, whose value is written instead of a class.
    """

    def __init__(self, task: Any, options: Namespace) -> None:
        super().__init__(task, options)
        self.names: list[str] = task.artifacts.get("class_names") or []
        self.n_separators: int = task.artifacts.get("n_separators", 1)

    def prepare(self, line: str) -> Item:
        """Return the ids of a line and the number of tokens in its first segment.

        Raises:
            InputError: The line has too many tokens, or another number of texts than in training.
        """
        texts = line.split("\t")
        wanted = self.task.artifacts.get("n_texts")  # unknown for an imported checkpoint
        if len(texts) > 2 or len(texts) != (wanted or len(texts)):
            raise InputError(
                f"must have {wanted or '1 or 2'} texts separated by tabs, got {len(texts)}",
                option="the line",
            )
        encoded = [self.tokenizer.encode(text) for text in texts]
        n_special = n_special_tokens(len(encoded), self.n_separators)
        n_tokens = self.truncated_length(sum(map(len, encoded)) + n_special)
        columns = [
            RaggedArray.from_lengths(np.array(p, np.int64), np.array([len(p)])) for p in encoded
        ]
        rows, first = join_segments(columns, self.tokenizer, n_tokens, self.n_separators)
        ids = rows[0].tolist()
        return Item((ids, int(first[0])), len(ids))

    @torch.inference_mode()
    def run(self, items: list[Item]) -> list[str]:
        """Return the `--top-k` classes of each line with probabilities, or the predicted value."""
        ids, mask = self.pad([item.content[0] for item in items])  # (B, T)
        first = torch.tensor([[item.content[1]] for item in items], device=self.device)
        segments = ((torch.arange(ids.shape[1], device=self.device) >= first) & mask).long()
        unused = torch.zeros(len(items), dtype=torch.long, device=self.device)
        batch = SequenceBatch(ids, unused, segments, mask, unused)
        logits = self.task.logits(batch).float()  # (B, K)
        if logits.shape[-1] == 1:
            return [f"{number:.4f}" for number in logits.squeeze(-1).tolist()]
        return format_classes(logits, self.names, self.options.top_k)
