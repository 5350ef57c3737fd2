"""Documents as lists of encoded sentences, and how whole sentences fill rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fourfold.data.ragged import Ragged
from fourfold.data.tokenizer import Tokenizer

_BREAK = {
    "line": re.compile(r"\n"),
    # A blank line, or white space after a full stop, with or without a quote or a bracket.
    "punctuation": re.compile(r"\n\s*\n|(?<=[.!?])\s+|(?<=[.!?][\"')\]])\s+"),
}
SentenceBreak = Literal["line", "punctuation"]


@dataclass(frozen=True)
class Sentences:
    """The sentences of all documents, in order.

    Args:
        ids: one row a sentence, none empty and none longer than a limit.
        document: (sentences,) the document of each, counted from 0 without gaps.
    """

    ids: Ragged
    document: np.ndarray

    @classmethod
    def of(
        cls, texts: Sequence[str], tokenizer: Tokenizer, sep: SentenceBreak, limit: int
    ) -> Sentences:
        """Splits documents into sentences; one with more than `limit` tokens becomes several."""
        pieces: list[str] = []
        owners: list[int] = []
        for document, text in enumerate(texts):
            found = [piece for piece in _BREAK[sep].split(text) if piece.strip()]
            # The split took the white space that was before all sentences but the first.
            pieces += [*found[:1], *map(tokenizer.behind_blank, found[1:])]
            owners += [document] * len(found)
        encoded = tokenizer.encode_corpus(pieces)
        parts = -(-encoded.lengths // limit)  # none for a sentence without a token
        owner = np.repeat(np.array(owners, np.int64), parts)
        number = np.arange(len(owner)) - np.repeat(np.cumsum(parts) - parts, parts)
        lengths = np.minimum(limit, np.repeat(encoded.lengths, parts) - number * limit)
        documents = np.unique(owner, return_inverse=True)[1]
        return cls(Ragged.from_lengths(encoded.ids, lengths), documents)

    def __len__(self) -> int:
        return len(self.ids)

    def fill(self, limit: int, *, cross: bool, between: int = 0, over: bool = False) -> np.ndarray:
        """Greedy rows of whole sentences.

        Args:
            limit: most tokens of a row.
            cross: whether a row may go on into the next document.
            between: tokens that a border between documents costs.
            over: whether the sentence that crosses the limit is still the row's, to be cut there.

        Returns:
            Inner borders: the sentences that begin a row, but for the first.
        """
        borders, room = [], limit
        lengths, documents = self.ids.lengths.tolist(), self.document.tolist()
        for sentence in range(len(lengths)):
            changes = sentence > 0 and documents[sentence] != documents[sentence - 1]
            needed = lengths[sentence] + between * changes
            is_full = room <= 0 if over else needed > room
            if sentence and (is_full or (changes and not cross)):
                borders.append(sentence)
                room = limit
                needed = lengths[sentence]
            room -= needed
        return np.array(borders, np.int64)

    def pairs(self) -> np.ndarray:
        """Rows of two sentences of a document, as borders like those of `fill`.

        The last of an odd number is a row by itself.
        """
        place = np.arange(len(self)) - np.searchsorted(self.document, self.document)
        return np.flatnonzero(place % 2 == 0)[1:]
