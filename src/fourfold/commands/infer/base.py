"""LineProcessor and TextProcessor: base classes that turn lines of input into lines of output.

Shapes: B lines of a batch, T tokens of the longest line, N outputs per line, L tokens of the
longest output.
"""

from argparse import Namespace
from typing import Any

import torch
from torch import Tensor

from fourfold.commands.infer.line_io import Item
from fourfold.core.validation import quote
from fourfold.errors import InputError
from fourfold.generation import GenerationDefaults, beam_search
from fourfold.generation.step import check_logits
from fourfold.layers.base_model import Model
from fourfold.tokenization.tokenizer import Tokenizer

BEAM_OPTIONS = ("num_beams", "length_penalty", "length_penalty_type")
ESCAPES = {
    **{code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))},
    **str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}),
}


class LoadedModel:
    """Model with the attributes of a task (LightningModule) that a `LineProcessor` reads.

    `LineProcessor` accepts this object in place of the task, so that Lightning is not imported.

    Args:
        model: Model that `fourfold.load` returned.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.artifacts = model.artifacts

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the checkpoint.

        Raises:
            InputError: The checkpoint was imported from weights without a tokenizer.
        """
        if self.model.tokenizer is None:
            problem = "has no tokenizer: it was imported from weights without one"
            raise InputError(problem, option="--checkpoint")
        return self.model.tokenizer


class LineProcessor:
    """Base class of objects that turn each line of input into a line of output.

    `prepare` converts one line, and `run` runs the model on a batch of converted lines.

    Args:
        task: Task (LightningModule) or `LoadedModel` of a checkpoint, moved to its device.
        options: Parsed options of the command.
    """

    # Number of batches that are read ahead, so that lines of similar length share a batch.
    batches_ahead = 64

    def __init__(self, task: Any, options: Namespace) -> None:
        self.task = task
        self.model = task.model
        self.options = options
        self.device = next(task.model.parameters()).device

    def prepare(self, line: str) -> Item:
        """Return the `Item` (model input, size and group) of a line that is not empty.

        Raises:
            InputError: The model cannot read the line.
        """
        raise NotImplementedError

    def run(self, items: list[Item]) -> list[str]:
        """Run the model on a batch of items, and return one line of output for each item.

        A subclass implements `logits` and `write`, or replaces this method and calls a decoding
        function of `fourfold.generation`, which checks the logits, too.

        Args:
            items: Results of `prepare`, at most one batch.

        Raises:
            InputError: The model computes NaN or infinite logits.
        """
        return self.write(items, check_logits(self.logits(items)))

    def logits(self, items: list[Item]) -> Tensor:
        """Run the model on a batch of items, and return its logits."""
        raise NotImplementedError

    def write(self, items: list[Item], logits: Tensor) -> list[str]:
        """Return one line of output for each item of a batch."""
        raise NotImplementedError


class TextProcessor(LineProcessor):
    """Base class of objects that turn each line of text into a line of output by a model.

    The class provides truncation, padding and beam search with the tokenizer of the checkpoint.

    Raises:
        InputError: The tokenizer has more entries than the model has embeddings, or a token of
            `--suppress-tokens` is not in the vocabulary.
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
        self.defaults = self.model.generation_defaults or GenerationDefaults()
        self.end_ids = self.defaults.end_ids or (self.tokenizer.eos_id,)
        self.suppressed: list[int] = []
        for text in vars(options).get("suppress_tokens", ()):
            if (token := self.tokenizer.vocabulary.get(text)) is None:
                message = f"must be a token of the vocabulary, got {quote(text)}"
                raise InputError(message, option="--suppress-tokens")
            self.suppressed.append(token)
        limits = (getattr(self.model.config, "max_len", None), task.artifacts.get("max_len"))
        # Largest number of tokens that the model reads, special tokens included.
        self.max_len = min((limit for limit in limits if limit is not None), default=None)

    def truncated_length(self, n_tokens: int) -> int:
        """Return the number of tokens of a text, special tokens included, that the model reads.

        Args:
            n_tokens: Number of tokens of the whole text, special tokens included. It is returned
                unchanged if the text fits into the model.

        Raises:
            InputError: The text is too long for the model, and `--truncate` is not given.
        """
        limit = self.max_len
        if limit is None or n_tokens <= limit:
            return n_tokens
        if not self.options.truncate:
            raise InputError(
                f"has {n_tokens} tokens, but the model reads {limit}; --truncate shortens it",
                option="the text",
            )
        return int(limit)

    def truncate(self, ids: list[int], n_special: int) -> list[int]:
        """Remove token ids at the end of a text that is too long for the model.

        Args:
            ids: Token ids of the text, without special tokens.
            n_special: Number of special tokens that the caller adds later. Space for these tokens
                is left.

        Returns:
            The token ids that remain.

        Raises:
            InputError: The text is too long for the model, and `--truncate` is not given.
        """
        return ids[: self.truncated_length(len(ids) + n_special) - n_special]

    def pad(self, rows: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Join the token ids of B lines in one tensor, padded on the right.

        Args:
            rows: Token ids of each line.

        Returns:
            Ids (B, T) int64, where T is the length of the longest line, and a mask (B, T) bool that
            is True for real tokens.
        """
        width = max(map(len, rows))
        pad_id = self.tokenizer.pad_id
        ids = torch.tensor([row + [pad_id] * (width - len(row)) for row in rows])
        mask = torch.arange(width) < torch.tensor([[len(row)] for row in rows])
        return ids.to(self.device), mask.to(self.device)

    def beam_search(self, ids: Tensor, mask: Tensor | None, **defaults: Any) -> Tensor:
        """Search for the N best outputs of each line, where N is the value of `--n-best`.

        Args:
            ids: Token ids (B, T) of sentences to translate or of prompts, or images (B, C, H, W).
            mask: Mask (B, T), True for real tokens; None for images.
            **defaults: Further arguments of `fourfold.generation.beam_search`. If the user gives
                --beam, --length-penalty or --length-penalty-type, the option replaces the argument
                of the same name.

        Returns:
            Token ids (B, N, L), padded to the longest output. The best output of a line is first.
            Translations and captions begin with the decoder's start token. Other outputs begin
            with the prompt.
        """
        names = ("beam", "length_penalty", "length_penalty_type")
        given = {name: value for name in names if (value := vars(self.options)[name]) is not None}
        best, _ = beam_search(
            self.model,
            ids,
            src_mask=mask,
            n_best=self.options.n_best,
            eos_id=self.end_ids,
            pad_id=self.tokenizer.pad_id,
            suppress_tokens=self.suppressed,
            **(defaults | given),
        )
        return best.reshape(len(ids), self.options.n_best, -1)

    def write_targets(self, src: Tensor, mask: Tensor | None, max_len: int | None) -> list[str]:
        """Return the N best texts of an encoder-decoder for each line, separated by tabs.

        N is the value of `--n-best`. Beam width and length penalty are those that are stored with
        the model, otherwise those of the task, unless they are given as options.

        Args:
            src: Token ids (B, T) of the lines, or images (B, C, H, W).
            mask: Mask (B, T), True for real tokens; None for images.
            max_len: Maximum number of tokens of a text; None means the length of the line + 50.
        """
        stored = {name: value for name, value in vars(self.defaults).items() if value is not None}
        options = {name: stored.get(name, getattr(self.task, name)) for name in BEAM_OPTIONS}
        options["beam"] = max(options.pop("num_beams"), self.options.n_best)
        start_id = stored.get("bos_id", self.task.start_id)
        best = self.beam_search(src, mask, **options, bos_id=start_id, max_len=max_len)
        return ["\t".join(map(escape, self.tokenizer.decode_batch(x))) for x in best.tolist()]


def escape(text: str) -> str:
    r"""Replace backslash, tab, newline and carriage return by `\\`, `\t`, `\n` and `\r`.

    Tabs separate the outputs of a line, and line breaks separate lines. Other control characters,
    with which a text could change a terminal, become `\x1b` and so on.
    """
    return text.translate(ESCAPES)
