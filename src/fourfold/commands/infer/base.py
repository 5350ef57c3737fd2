"""What the verbs share: a model that reads lines as ids.

Shapes: B lines of a batch, T tokens.
"""

from argparse import Namespace
from typing import TypeVar

import torch
from torch import Tensor

from fourfold.commands.lines import Item
from fourfold.core.errors import InputError
from fourfold.data.tokenizer import Tokenizer
from fourfold.tasks import Task

T = TypeVar("T")


class Verb:
    """Prepares a line, and runs a batch of prepared lines.

    Args:
        task: From a checkpoint.
        options: Of the command line.
    """

    batches_ahead = 64  # how many are read at a time, so that lines of like length can meet

    def __init__(self, task: Task, options: Namespace) -> None:
        self.task, self.model, self.options = task, task.model, options
        self.device = next(task.model.parameters()).device

    def prepare(self, line: str) -> Item:
        """What the model reads for a line that is not empty.

        Raises:
            InputError: The line cannot be read by this model.
        """
        raise NotImplementedError

    def run(self, items: list[Item]) -> list[str]:
        """One line of output for each item."""
        raise NotImplementedError


class TextVerb(Verb):
    """A verb whose lines are text."""

    def __init__(self, task: Task, options: Namespace) -> None:
        super().__init__(task, options)
        self.tokenizer: Tokenizer = task.tokenizer
        words, vectors = self.tokenizer.vocab_size, getattr(self.model.config, "vocab_size", None)
        if vectors is not None and words > vectors:
            raise InputError(f"its tokenizer has {words} entries, but its model {vectors} vectors")
        limits = (getattr(self.model.config, "max_len", None), task.artifacts.get("max_len"))
        # Most tokens that the model reads, special ones included.
        self.longest = min((limit for limit in limits if limit is not None), default=None)

    def fit(self, ids: list[int], special: int) -> list[int]:
        """`ids` if they have room beside so many special tokens, else cut where that is allowed.

        Raises:
            InputError: They have no room, and `--truncate` is not given.
        """
        limit = self.longest
        if limit is None or len(ids) + special <= limit:
            return ids
        if not self.options.truncate:
            raise InputError(
                f"{len(ids) + special} tokens are more than the {limit} that the model reads;"
                " --truncate cuts the end off"
            )
        return ids[: limit - special]

    def pad(self, rows: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Ids (B, T) with padding to the right, and the mask (B, T) of real tokens."""
        width, pad_id = max(map(len, rows)), self.tokenizer.pad_id
        ids = torch.tensor([row + [pad_id] * (width - len(row)) for row in rows])
        mask = torch.arange(width) < torch.tensor([[len(row)] for row in rows])
        return ids.to(self.device), mask.to(self.device)


def given(value: T | None, default: T) -> T:
    """`value`, unless the user left it out."""
    return default if value is None else value


def one_line(text: str) -> str:
    """Text that does not break the lines and columns of the output."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
