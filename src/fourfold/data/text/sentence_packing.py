"""Sentences: division of documents into encoded sentences, packing of sentences into rows."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fourfold.data.loading.ragged import RaggedArray
from fourfold.tokenization.tokenizer import Tokenizer

SentenceBreak = Literal["line", "punctuation"]
_BREAKS = {
    "line": re.compile(r"\n"),
    # An empty line, or white space after a full stop and an optional quote or bracket.
    "punctuation": re.compile(r"\n\s*\n|(?<=[.!?])\s+|(?<=[.!?][\"')\]])\s+"),
}


@dataclass(frozen=True)
class Sentences:
    """Encoded sentences of all documents, in order.

    Args:
        ids: Token ids, one row per sentence; no sentence is empty.
        document: (sentences,) document of each sentence, numbered from 0 without gaps.
    """

    ids: RaggedArray
    document: np.ndarray

    @classmethod
    def from_texts(
        cls, texts: Sequence[str], tokenizer: Tokenizer, sentence_break: SentenceBreak, limit: int
    ) -> "Sentences":
        """Divide documents into sentences, and encode the sentences.

        Args:
            texts: Texts of the documents.
            tokenizer: Tokenizer of the sentences.
            sentence_break: End of a sentence: "line" or "punctuation".
            limit: Maximum tokens of a sentence; a longer sentence is divided into several.
        """
        sentences: list[str] = []
        owners: list[int] = []
        for document, text in enumerate(texts):
            found = [part for part in _BREAKS[sentence_break].split(text) if part.strip()]
            # Splitting removed the white space before all sentences but the first.
            sentences += [*found[:1], *map(tokenizer.with_leading_space, found[1:])]
            owners += [document] * len(found)
        encoded = RaggedArray.from_lengths(*tokenizer.encode_corpus(sentences))
        n_chunks = -(-encoded.lengths // limit)  # 0 for a sentence without tokens
        owner = np.repeat(np.array(owners, np.int64), n_chunks)
        number = np.arange(len(owner)) - np.repeat(np.cumsum(n_chunks) - n_chunks, n_chunks)
        lengths = np.minimum(limit, np.repeat(encoded.lengths, n_chunks) - number * limit)
        document_numbers = np.unique(owner, return_inverse=True)[1]
        return cls(RaggedArray.from_lengths(encoded.ids, lengths), document_numbers)

    def __len__(self) -> int:
        return len(self.ids)

    def pack(
        self, limit: int, *, cross_documents: bool, separator_cost: int = 0, overflow: bool = False
    ) -> np.ndarray:
        """Pack whole sentences greedily into rows.

        Args:
            limit: Maximum tokens of a row.
            cross_documents: A row may extend into the next document.
            separator_cost: Tokens that a boundary between documents takes.
            overflow: The sentence that crosses the limit belongs to the row, which the caller then
                truncates.

        Returns:
            Indices of the sentences that begin a row, without the first sentence.
        """
        borders = []
        remaining = limit
        lengths = self.ids.lengths.tolist()
        documents = self.document.tolist()
        for sentence in range(len(lengths)):
            changes = sentence > 0 and documents[sentence] != documents[sentence - 1]
            needed = lengths[sentence] + separator_cost * changes
            is_full = remaining <= 0 if overflow else needed > remaining
            if sentence and (is_full or (changes and not cross_documents)):
                borders.append(sentence)
                remaining = limit
                needed = lengths[sentence]
            remaining -= needed
        return np.array(borders, np.int64)

    def pairs(self) -> np.ndarray:
        """Return the indices of the sentences that begin a row, for rows of two sentences.

        Both sentences of a row are of one document. If a document has an odd number of sentences,
        its last sentence is a row by itself. As in `pack`, index 0 is left out.
        """
        index_in_document = np.arange(len(self)) - np.searchsorted(self.document, self.document)
        return np.flatnonzero(index_in_document % 2 == 0)[1:]
