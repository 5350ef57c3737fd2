"""TextReader: texts as token ids, within the limits of a model.

The commands of inference and the page of attention maps read texts with it.
"""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from fourfold.core.validation import MAX_SIZE
from fourfold.data.loading.ragged import RaggedArray
from fourfold.data.text.packing import encode_documents
from fourfold.data.text.segments import join_segments, n_special_tokens
from fourfold.errors import InputError
from fourfold.layers.base_model import Model
from fourfold.tokenization.tokenizer import Tokenizer

MASK = re.compile(r"(\[MASK\]|<mask>)")


class TextReader:
    """Model that reads or writes texts, with its tokenizer and its limits.

    Each method raises InputError if the text is too long for the model and must not be truncated.

    Args:
        model: The model.
        truncate: Truncate texts that are too long for the model, instead of raising an error.

    Raises:
        InputError: The model has no tokenizer, or one with more entries than the model has
            embeddings.
    """

    def __init__(self, model: Model, *, truncate: bool = False) -> None:
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

    def shortened(self, length: int, limit: int | None, unit: str = "tokens") -> int:
        """Return how many of the tokens of a text, special tokens included, the model reads."""
        if limit is None or length <= limit:
            return length
        if not self.truncates:
            raise InputError(
                f"has {length} {unit}, but the model reads {limit}; --truncate (in Python:"
                " truncate=True) shortens it",
                option="the text",
            )
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
        return [
            found.ids[i].tolist() for i in range(self.shortened(len(found), limit, "sentences"))
        ]
