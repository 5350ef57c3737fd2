"""`fourfold classify` for words: a sentence to the tags of its words.

Shapes: B lines of a batch, T tokens, K tags.
"""

from argparse import Namespace

import torch

from fourfold.commands.lines import Item
from fourfold.commands.verbs.base import TextVerb
from fourfold.tasks import Task


class Tag(TextVerb):
    """One tag for each word between blanks, read at the word's first token."""

    def __init__(self, task: Task, options: Namespace) -> None:
        super().__init__(task, options)
        self.tags: list[str] = task.artifacts["class_names"]

    def prepare(self, line: str) -> Item:
        """The ids of a line, and the places of its words."""
        (words,) = self.tokenizer.encode_words([line.split()])
        ids = self.fit([i for word in words for i in word], special=2)
        places, place = [], 1
        for word in words:
            if place <= len(ids):
                places.append(place)
            place += len(word)
        ids = [self.tokenizer.bos_id, *ids, self.tokenizer.eos_id]
        return Item((ids, places), len(ids))

    @torch.inference_mode()
    def run(self, items: list[Item]) -> list[str]:
        """The tags of each line, with blanks between."""
        ids, mask = self.pad([item.content[0] for item in items])
        best = self.model(ids, None, mask).argmax(-1).tolist()  # (B, T)
        return [
            " ".join(self.tags[row[place]] for place in item.content[1])
            for row, item in zip(best, items, strict=True)
        ]
