"""`fourfold classify` for token classifiers: write the tag of each word of a sentence.

Shapes: B lines of a batch, T tokens.
"""

from argparse import Namespace
from itertools import accumulate
from typing import Any

import torch

from fourfold.commands.infer.base import TextProcessor
from fourfold.commands.infer.line_io import Item


class WordTagger(TextProcessor):
    """Line processor that tags words, which are separated by spaces.

    The tag of a word is the tag that the model predicts for the first token of the word.
    """

    def __init__(self, task: Any, options: Namespace) -> None:
        super().__init__(task, options)
        self.tags: list[str] = task.artifacts["class_names"]

    def prepare(self, line: str) -> Item:
        """Return the ids of a line, and the position of the first token of each word."""
        (words,) = self.tokenizer.encode_words([line.split()])
        ids = self.truncate([token for word in words for token in word], n_special=2)
        starts = accumulate(map(len, words[:-1]), initial=1)  # after the token CLS
        positions = [start for start in starts if start <= len(ids)]
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
