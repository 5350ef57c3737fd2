"""Parts that the functions from text to text share: batches, truncation, padding and beam search.

Each function, such as `fourfold.translate`, converts its inputs to `Item`s, and computes one answer
per item with `run_batches`. The commands write these answers as lines.

Shapes: B inputs of a batch, T tokens of the longest input, N outputs per input, L tokens of the
longest output.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, islice
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor

from fourfold.core.validation import check_positive, quote
from fourfold.errors import InputError
from fourfold.generation.beam_search import beam_search
from fourfold.generation.text_reader import TextReader
from fourfold.layers.base_model import Model
from fourfold.layers.generation_defaults import BeamOptions

INPUTS = "inputs"  # name of the inputs of a function in messages


class Item(NamedTuple):
    """Input of a function, converted to the input of the model.

    Args:
        content: Input of the model, such as token ids or an image.
        size: Length in tokens, or 0 for an image. Items are sorted by length before batching.
        group: Items of a batch have the same group. For example, prompts with different limits of
            new tokens are in different groups.
    """

    content: Any
    size: int
    group: int = 0


@torch.inference_mode()
def run_batches(
    inputs: Sequence[Any],
    prepare: Callable[[Any], Item],
    run: Callable[[list[Item]], Iterable[Any]],
    batch_size: int,
    batches_ahead: int = 64,
) -> list[Any]:
    """Return one answer for each input, in the same order.

    `prepare` converts an input, and `run` answers a batch. As many inputs as fill `batches_ahead`
    batches are prepared at a time; those of similar length share a batch, which saves padding.

    Raises:
        InputError: `prepare` rejects an input. The error has the file `INPUTS` and the line n for
            the n-th input.
    """
    check_positive("batch_size", batch_size)
    answers: list[Any] = [None] * len(inputs)
    numbered = enumerate(inputs)
    while chunk := list(islice(numbered, batch_size * batches_ahead)):
        items = {}
        for index, value in chunk:
            try:
                items[index] = prepare(value)
            except InputError as error:
                raise error.in_file(INPUTS, index + 1) from error
        order = sorted(items, key=lambda index: (items[index].group, items[index].size))
        for _, group in groupby(order, key=lambda index: items[index].group):
            while batch := list(islice(group, batch_size)):
                for index, answer in zip(batch, run([items[i] for i in batch]), strict=True):
                    answers[index] = answer
    return answers


def check_model(model: Model, is_fit: bool, needed: str) -> None:
    """Raise InputError unless a model is of the kind that a function needs."""
    if not is_fit:
        raise InputError(f"must be {needed}, got {type(model).__name__}", option="model")


def check_penalty(**options: Unpack[BeamOptions]) -> None:
    """Raise InputError if an option of the length penalty would have no effect."""
    for name in ("length_penalty", "length_penalty_type"):
        if options.get(name) is not None and options.get("num_beams") == 1:
            raise InputError("needs num_beams of at least 2", option=name)
    if options.get("length_penalty") is not None and options.get("length_penalty_type") == "none":
        raise InputError("needs another length_penalty_type than none", option="length_penalty")


class TextModel(TextReader):
    """Model that reads or writes texts, with its tokenizer, its limits and what is stored with it.

    Raises:
        InputError: As in the base class; or a text of `suppress_tokens` is not a token of the
            vocabulary.
    """

    def __init__(
        self, model: Model, *, truncate: bool = False, suppress_tokens: Sequence[str] = ()
    ) -> None:
        super().__init__(model, truncate=truncate)
        self.suppressed: list[int] = []
        for text in suppress_tokens:
            if (token := self.tokenizer.backend.token_to_id(text)) is None:
                message = f"must be a token of the vocabulary, got {quote(text)}"
                raise InputError(message, option="suppress_tokens")
            self.suppressed.append(token)

    def pad(self, rows: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Return ids (B, T), padded on the right, and a mask (B, T), True for real tokens."""
        width = max(map(len, rows))
        pad_id = self.tokenizer.pad_id
        ids = torch.tensor([row + [pad_id] * (width - len(row)) for row in rows])
        mask = torch.arange(width) < torch.tensor([[len(row)] for row in rows])
        return ids.to(self.device), mask.to(self.device)

    def beam_search(self, ids: Tensor, mask: Tensor | None, **options: Any) -> Tensor:
        """Return token ids (B, N, L) of the N best outputs, the best one first.

        The ids (B, T) are sources or prompts, or images (B, C, H, W). Outputs for sources begin
        with the start token, those for prompts with the prompt.
        """
        best, _ = beam_search(
            self.model,
            ids,
            src_mask=mask,
            pad_id=self.tokenizer.pad_id,
            suppress_tokens=self.suppressed,
            **options,
        )
        return best.reshape(len(ids), -1, best.shape[-1])

    def targets(self, src: Tensor, mask: Tensor | None, **options: Any) -> list[Any]:
        """Return the text of the target of each source, or a list of texts if there are several."""
        rows = self.beam_search(src, mask, **options).tolist()
        return one_or_all([self.tokenizer.decode_batch(row) for row in rows], len(rows[0]))


def one_or_all(rows: list[list[str]], n: int) -> list[Any]:
    """Return the only text of each row if `n` is 1, otherwise the rows."""
    return [row[0] for row in rows] if n == 1 else rows
