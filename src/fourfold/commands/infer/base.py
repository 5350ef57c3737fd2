"""Base classes of the inference commands: from a line of input to a line of output.

Shapes: B lines of a batch, T tokens.
"""

from argparse import Namespace
from typing import Any, TypeVar

import torch
from torch import Tensor

from fourfold.commands.infer.line_io import Item
from fourfold.errors import InputError
from fourfold.tokenization.tokenizer import Tokenizer

T = TypeVar("T")


class LineProcessor:
    """Prepare single lines, and run batches of prepared lines.

    Args:
        task: Task from a checkpoint.
        options: Options of the command.
    """

    # Batches read ahead, so that lines of similar length are batched together.
    batches_ahead = 64

    def __init__(self, task: Any, options: Namespace) -> None:
        self.task = task
        self.model = task.model
        self.options = options
        self.device = next(task.model.parameters()).device

    def prepare(self, line: str) -> Item:
        """Return the model's input for a line that is not empty.

        Raises:
            InputError: The model cannot read the line.
        """
        raise NotImplementedError

    def run(self, items: list[Item]) -> list[str]:
        """Return one line of output for each item."""
        raise NotImplementedError


class TextProcessor(LineProcessor):
    """`LineProcessor` whose lines are text.

    Raises:
        InputError: The tokenizer has more entries than the model has embeddings.
    """

    def __init__(self, task: Any, options: Namespace) -> None:
        super().__init__(task, options)
        self.tokenizer: Tokenizer = task.tokenizer
        n_entries = self.tokenizer.vocab_size
        vocab_size = getattr(self.model.config, "vocab_size", None)
        if vocab_size is not None and n_entries > vocab_size:
            raise InputError(
                f"has a tokenizer with {n_entries} entries, but a model with {vocab_size}"
                " embeddings",
                option="the checkpoint",
            )
        limits = (getattr(self.model.config, "max_len", None), task.artifacts.get("max_len"))
        # Largest number of tokens that the model reads, special tokens included.
        self.max_len = min((limit for limit in limits if limit is not None), default=None)

    def truncate(self, ids: list[int], n_special: int) -> list[int]:
        """Return ids that leave space for `n_special` tokens, truncated if `--truncate` is given.

        Raises:
            InputError: The ids are too long, and `--truncate` is not given.
        """
        limit = self.max_len
        if limit is None or len(ids) + n_special <= limit:
            return ids
        if not self.options.truncate:
            raise InputError(
                f"has {len(ids) + n_special} tokens, but the model reads {limit}; --truncate"
                " removes the end",
                option="the text",
            )
        return ids[: limit - n_special]

    def pad(self, rows: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Return ids (B, T) padded on the right, and the mask (B, T) of real tokens."""
        width = max(map(len, rows))
        pad_id = self.tokenizer.pad_id
        ids = torch.tensor([row + [pad_id] * (width - len(row)) for row in rows])
        mask = torch.arange(width) < torch.tensor([[len(row)] for row in rows])
        return ids.to(self.device), mask.to(self.device)


def with_default(value: T | None, default: T) -> T:
    """Return `value`, or `default` if it is None."""
    return default if value is None else value


def escape(text: str) -> str:
    """Escape backslashes, tabs and line breaks, which separate lines and columns of the output."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
