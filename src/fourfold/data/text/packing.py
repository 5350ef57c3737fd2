"""Packing of documents into sequences of fixed length: TokenStream and Sentences.

`TokenStream` concatenates documents, and its blocks begin and end anywhere in a document.
`Sentences` divides documents into sentences, and packs whole sentences.

Shapes: B rows of a batch.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fourfold.data.loading.ragged import RaggedArray
from fourfold.data.readers.documents import count_bytes_and_words
from fourfold.tokenization.tokenizer import Tokenizer

HTML_BREAK = re.compile(r"\s*<br\s*/?>\s*", re.IGNORECASE)
SentenceBreak = Literal["line", "punctuation"]
_BREAKS = {
    "line": re.compile(r"\n"),
    # An empty line, or white space after a full stop and an optional quote or bracket.
    "punctuation": re.compile(r"\n\s*\n|(?<=[.!?])\s+|(?<=[.!?][\"')\]])\s+"),
}


class TokenStream:
    """Tokens of all documents, concatenated, with an EOS at the start and after each document.

    At position p of the stream, the input is token p and the target is token p + 1. Every token of
    a document is therefore a target once. A position belongs to the document of its target. The
    first input of a document is therefore the EOS before the document.
    """

    def __init__(self, documents: RaggedArray, texts: Sequence[str], eos_id: int) -> None:
        terminated = documents.wrap(after=eos_id)
        self.ids = np.concatenate([[eos_id], terminated.ids]).astype(np.int32)
        self.offsets = terminated.offsets
        self._borders = self.offsets.astype(np.float64)  # np.interp would convert at each call
        sizes = np.array(count_bytes_and_words(texts), np.float64)  # (2, documents)
        self._sizes_before = np.pad(sizes.cumsum(1), ((0, 0), (1, 0)))  # (2, documents + 1)

    def __len__(self) -> int:
        """Return the number of targets, which is the number of tokens without the first EOS."""
        return len(self.ids) - 1

    def n_blocks(self, block_size: int, context: int) -> int:
        """Return the number of blocks that cover the stream and overlap by `context` tokens."""
        return max(1, -(-(len(self) - context) // (block_size - context)))

    def count_bytes_and_words(self, begins: np.ndarray, ends: np.ndarray) -> tuple[int, int]:
        """Return the number of UTF-8 bytes and of words in the text of all targets of a batch.

        Each token of a document, EOS included, counts as an equal share of the document's bytes and
        words. The numbers for one row are therefore approximate, but the sums over rows that cover
        the stream are exact. The targets of a row have the positions from `begins` (B,) to before
        `ends` (B,).
        """
        n_bytes, n_words = (
            np.diff(np.interp([begins, ends], self._borders, sizes).astype(np.int64), axis=0).sum()
            for sizes in self._sizes_before
        )
        return int(n_bytes), int(n_words)


@dataclass(frozen=True)
class Sentences:
    """Encoded sentences of all documents, in their order in the text.

    Args:
        ids: Token ids of each sentence; no sentence is empty.
        document: (sentences,) index of the document of each sentence. Documents without a sentence
            are not counted, so there are no gaps.
    """

    ids: RaggedArray
    document: np.ndarray

    @classmethod
    def from_texts(
        cls, texts: Sequence[str], tokenizer: Tokenizer, sentence_break: SentenceBreak, limit: int
    ) -> "Sentences":
        """Divide documents into sentences, and encode them in pieces of at most `limit` tokens.

        `sentence_break` is the boundary between sentences: "line" (the end of a line) or
        "punctuation" (an empty line, or white space after a full stop, question or exclamation
        mark).
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
        """Pack whole sentences greedily into sequences, and return where new sequences begin.

        Args:
            limit: Maximum number of tokens of a sequence.
            cross_documents: True if a sequence may contain sentences of several documents.
            separator_cost: Number of tokens that the caller will insert between two documents.
            overflow: True if a sequence includes the sentence with which it exceeds the limit, so
                that the caller must truncate it; otherwise this sentence begins the next sequence.
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
        """Group the sentences of each document in pairs, and return where new groups begin.

        If a document has an odd number of sentences, its last sentence is a group by itself.
        """
        index_in_document = np.arange(len(self)) - np.searchsorted(self.document, self.document)
        return np.flatnonzero(index_in_document % 2 == 0)[1:]


def encode_documents(texts: Sequence[str], tokenizer: Tokenizer, max_len: int) -> Sentences:
    """Divide documents into sentences, and encode the sentences.

    A sentence ends at an empty line, at an HTML line break (`<br />`), and at white space after a
    full stop, question or exclamation mark, which a quotation mark or a bracket may follow. A
    sentence of more than `max_len` words is divided into several sentences.

    Args:
        texts: Texts of the documents.
        tokenizer: Tokenizer of the sentences, whose tokens are called words.
        max_len: Maximum number of words of a sentence.

    Returns:
        Token ids of each sentence, and the index of each sentence's document. Documents without a
        sentence are left out of the numbering.
    """
    texts = [HTML_BREAK.sub("\n\n", text) for text in texts]
    return Sentences.from_texts(texts, tokenizer, "punctuation", max_len)
