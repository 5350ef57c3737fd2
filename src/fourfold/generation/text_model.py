"""Parts that the functions from text to text share: batches, truncation, padding and beam search.

Each function, such as `fourfold.translate`, converts its inputs to `Item`s, and computes one answer
per item with `run_batches`. The commands write these answers as lines.

Shapes: B inputs of a batch, T tokens of the longest input, N outputs per input, L tokens of the
longest output.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, islice
from typing import Any, NamedTuple, Unpack

import numpy as np
import torch
from torch import Tensor

from fourfold.core.validation import MAX_SIZE, check_positive, quote
from fourfold.data.loading.ragged import RaggedArray
from fourfold.data.text.packing import encode_documents
from fourfold.data.text.segments import join_segments, n_special_tokens
from fourfold.errors import InputError
from fourfold.generation.beam_search import beam_search
from fourfold.layers.base_model import Model
from fourfold.layers.generation_defaults import BeamOptions
from fourfold.tokenization.tokenizer import Tokenizer

MASK = re.compile(r"(\[MASK\]|<mask>)")
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


class TextModel:
    """Model that reads or writes texts, with its tokenizer, its limits and what is stored with it.

    The methods from text to ids raise InputError if the text is too long for the model and must not
    be truncated. The commands of inference and the page of attention maps read texts with them.

    Args:
        model: The model.
        truncate: Truncate texts that are too long for the model, instead of raising an error.
        suppress_tokens: Tokens that are never generated, as texts.

    Raises:
        InputError: The model has no tokenizer, or one with more entries than the model has
            embeddings; or a text of `suppress_tokens` is not a token of the vocabulary.
    """

    def __init__(
        self, model: Model, *, truncate: bool = False, suppress_tokens: Sequence[str] = ()
    ) -> None:
        if model.tokenizer is None:
            problem = "has no tokenizer: it was imported from weights without one"
            raise InputError(problem, option="the model")
        self.model: Any = model
        self.tokenizer: Tokenizer = model.tokenizer
        self.device = model.device
        self.truncates = truncate
        n_entries = self.tokenizer.vocab_size
        vocab_size = getattr(model.config, "vocab_size", None)
        if vocab_size is not None and n_entries > vocab_size:
            problem = f"has a tokenizer with {n_entries} entries, but {vocab_size} embeddings"
            raise InputError(problem, option="the model")
        limits = (getattr(model.config, "max_len", None), model.artifacts.get("max_len"))
        # Largest number of tokens that the model reads, special tokens included.
        self.max_len = min((limit for limit in limits if limit is not None), default=None)
        self.suppressed: list[int] = []
        for text in suppress_tokens:
            if (token := self.tokenizer.backend.token_to_id(text)) is None:
                message = f"must be a token of the vocabulary, got {quote(text)}"
                raise InputError(message, option="suppress_tokens")
            self.suppressed.append(token)

    def shortened(self, length: int, limit: int | None, unit: str = "tokens") -> int:
        """Return how many of the tokens of a text, special tokens included, the model reads."""
        if limit is None or length <= limit:
            return length
        if not self.truncates:
            message = f"has {length} {unit}, but the model reads {limit}; --truncate"
            raise InputError(f"{message} (in Python: truncate=True) shortens it", option="the text")
        return limit

    def truncate(self, ids: list[int], n_special: int) -> list[int]:
        """Shorten token ids so that `n_special` special tokens can be added."""
        return ids[: self.shortened(len(ids) + n_special, self.max_len) - n_special]

    def source(self, text: str) -> list[int]:
        """Return the ids of a source text, which ends with EOS."""
        # Some tokenizers, such as that of BART, put a special token before each text.
        first = self.tokenizer.prepended_id
        prefix = [] if first is None else [first]
        ids = self.truncate(self.tokenizer.encode(text), n_special=len(prefix) + 1)
        return [*prefix, *ids, self.tokenizer.eos_id]

    @property
    def mask_id(self) -> int:
        """Id of the mask token; InputError if the tokenizer has none."""
        if self.tokenizer.mask_id is None:
            raise InputError("has a tokenizer without a mask token", option="the model")
        return self.tokenizer.mask_id

    def masked(self, text: str) -> tuple[list[int], list[str]]:
        """Return the ids from BOS to EOS of a text in which [MASK] or <mask> is the mask token.

        The second result is the strings into which the masks divide it: text, mask, text, ...
        """
        segments, ids = MASK.split(text), [self.tokenizer.bos_id]
        for part in segments[:-1:2]:  # the space before a mask belongs to the predicted token
            ids += [*self.tokenizer.encode(part.rstrip()), self.mask_id]
        ids = self.truncate([*ids, *self.tokenizer.encode(segments[-1])], n_special=1)
        return [*ids, self.tokenizer.eos_id], segments

    def joined(self, texts: Sequence[str]) -> tuple[list[int], int]:
        """Return the ids of a text or of a pair of texts, and the length of the first segment."""
        encoded = [self.tokenizer.encode(text) for text in texts]
        n_separators = self.model.artifacts.get("n_separators", 1)
        n_special = n_special_tokens(len(encoded), n_separators)
        n_tokens = self.shortened(sum(map(len, encoded)) + n_special, self.max_len)
        columns = [RaggedArray(np.array(ids, np.int64), np.array([0, len(ids)])) for ids in encoded]
        rows, first = join_segments(columns, self.tokenizer, n_tokens, n_separators)
        return rows[0].tolist(), int(first[0])

    def sentences(self, text: str) -> list[list[int]]:
        """Return the word ids of each sentence of a document; InputError if it has none."""
        found = encode_documents([text], self.tokenizer, self.max_len or MAX_SIZE)
        limit = self.model.config.max_sentences
        limit = min(limit, self.model.artifacts.get("max_sentences", limit))
        if not len(found):
            raise InputError("must have at least one sentence, got none", option="the text")
        n_sentences = self.shortened(len(found), limit, "sentences")
        return [found.ids[i].tolist() for i in range(n_sentences)]

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
        options |= {"pad_id": self.tokenizer.pad_id, "suppress_tokens": self.suppressed}
        best, _ = beam_search(self.model, ids, src_mask=mask, **options)
        return best.reshape(len(ids), -1, best.shape[-1])

    def targets(self, src: Tensor, mask: Tensor | None, **options: Any) -> list[Any]:
        """Return the text of the target of each source, or a list of texts if there are several."""
        rows = self.beam_search(src, mask, **options).tolist()
        return one_or_all([self.tokenizer.decode_batch(row) for row in rows], len(rows[0]))


def one_or_all(rows: list[list[str]], n: int) -> list[Any]:
    """Return the only text of each row if `n` is 1, otherwise the rows."""
    return [row[0] for row in rows] if n == 1 else rows
