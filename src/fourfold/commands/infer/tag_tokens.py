"""`fourfold classify` for taggers: from a sentence to the tags of its words.

Shapes: B lines of a batch, T tokens, K tags.
"""

from argparse import Namespace
from typing import Any

import torch

from fourfold.commands.infer.base import TextProcessor
from fourfold.commands.infer.line_io import Item


class WordTagger(TextProcessor):
    """Tags of whitespace-separated words; the tag of a word is that of its first token."""

    def __init__(self, task: Any, options: Namespace) -> None:
        super().__init__(task, options)
        self.tags: list[str] = task.artifacts["class_names"]

    def prepare(self, line: str) -> Item:
        """Return the ids of a line and the position of each word's first token."""
        (words,) = self.tokenizer.encode_words([line.split()])
        ids = self.truncate([token for word in words for token in word], n_special=2)
        positions = []
        position = 1
        for word in words:
            if position <= len(ids):
                positions.append(position)
            position += len(word)
        ids = [self.tokenizer.bos_id, *ids, self.tokenizer.eos_id]
        return Item((ids, positions), len(ids))

    @torch.inference_mode()
    def run(self, items: list[Item]) -> list[str]:
        """Return the tags of each line, separated by spaces."""
        ids, mask = self.pad([item.content[0] for item in items])
        best = self.model(ids, None, mask).argmax(-1).tolist()  # (B, T)
        return [
            " ".join(self.tags[row[position]] for position in item.content[1])
            for row, item in zip(best, items, strict=True)
        ]
