"""Packing of documents into sequences of fixed length: TokenStream and Sentences.

`TokenStream` concatenates documents, and its blocks begin and end anywhere in a document.
`Sentences` divides documents into sentences, and packs whole sentences.

Shapes: B rows of a batch.
"""

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fourfold.data.loading.ragged import RaggedArray
from fourfold.data.readers.documents import Piece
from fourfold.tokenization.tokenizer import Tokenizer

HTML_BREAK = re.compile(r"\s*<br\s*/?>\s*", re.IGNORECASE)
SentenceBreak = Literal["line", "punctuation"]
_PACKED_TOGETHER = 1 << 16  # sentences
BREAKS = {
    "line": re.compile(r"\n"),
    # An empty line, or white space after a full stop and an optional quote or bracket.
    "punctuation": re.compile(r"\n\s*\n|(?<=[.!?])\s+|(?<=[.!?][\"')\]])\s+"),
}


@dataclass(frozen=True)
class TokenStream:
    """Tokens of all documents, concatenated, with an EOS at the start and after each document.

    At position p of the stream, the input is token p and the target is token p + 1. Every token of
    a document is therefore a target once. A position belongs to the document of its target. The
    first input of a document is therefore the EOS before the document.

    Args:
        ids: Token ids.
        offsets: (documents + 1,) position at which each document begins, and the number of targets.
        bytes_before: (documents + 1,) number of UTF-8 bytes before each document, and of all
            documents; empty if it is not known.
        words_before: Same for words.
    """

    ids: np.ndarray
    offsets: np.ndarray
    bytes_before: np.ndarray
    words_before: np.ndarray

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
        if not len(self.bytes_before):
            return 0, 0
        at = np.minimum([begins, ends], self.offsets[-1])
        n_bytes, n_words = (
            np.diff(self._interpolated(at, before), axis=0).sum()
            for before in (self.bytes_before, self.words_before)
        )
        return int(n_bytes), int(n_words)

    def _interpolated(self, at: np.ndarray, before: np.ndarray) -> np.ndarray:
        """Return the values of `before` at positions of the stream, as `np.interp` does."""
        # np.interp would convert the complete arrays to float64 at each call.
        document = np.searchsorted(self.offsets, at, side="right") - 1
        document = np.minimum(document, len(self.offsets) - 2)
        begin, end = self.offsets[document], self.offsets[document + 1]
        first, last = before[document], before[document + 1]
        inside = (last - first) / (end - begin) * (at - begin) + first
        return np.where(at == end, last, inside).astype(np.int64)


@dataclass(frozen=True)
class Sentences:
    """Encoded sentences of all documents, in their order in the text.

    Args:
        ids: Token ids of each sentence; no sentence is empty.
        starts: (documents + 1,) index of the first sentence of each document, and the number of
            sentences. Documents without a sentence are left out.
    """

    ids: RaggedArray
    starts: np.ndarray

    @classmethod
    def from_texts(
        cls, texts: Sequence[str], tokenizer: Tokenizer, sentence_break: SentenceBreak, limit: int
    ) -> "Sentences":
        """Divide documents into sentences, and encode them in pieces of at most `limit` tokens.

        `sentence_break` is the boundary between sentences: "line" (the end of a line) or
        "punctuation" (an empty line, or white space after a full stop, question or exclamation
        mark).
        """
        pieces = [Piece(text, number, True, True) for number, text in enumerate(texts)]
        ids, lengths, owners = encode_sentences(tokenizer, sentence_break, limit, pieces)
        starts = np.flatnonzero(np.diff(owners, prepend=-1))
        return cls(RaggedArray.from_lengths(ids, lengths), np.append(starts, len(owners)))

    @property
    def document(self) -> np.ndarray:
        """Index of the document of each sentence, an array (sentences,)."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

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
        borders = array("q")
        remaining = limit
        for begin in range(0, len(self), _PACKED_TOGETHER):  # lists need much memory
            lengths = np.diff(self.ids.offsets[begin : begin + _PACKED_TOGETHER + 1])
            changes = np.zeros(len(lengths), bool)
            first, end = np.searchsorted(self.starts, [max(begin, 1), begin + len(lengths)])
            changes[self.starts[first:end] - begin] = True
            pairs = zip(lengths.tolist(), changes.tolist(), strict=True)
            for sentence, (length, is_other) in enumerate(pairs, begin):
                needed = length + separator_cost * is_other
                is_full = remaining <= 0 if overflow else needed > remaining
                if sentence and (is_full or (is_other and not cross_documents)):
                    borders.append(sentence)
                    remaining = limit
                    needed = length
                remaining -= needed
        return np.array(borders, np.int64)

    def pairs(self) -> np.ndarray:
        """Group the sentences of each document in pairs, and return where new groups begin.

        If a document has an odd number of sentences, its last sentence is a group by itself.
        """
        n_groups = (np.diff(self.starts) + 1) // 2
        number = np.arange(n_groups.sum()) - np.repeat(n_groups.cumsum() - n_groups, n_groups)
        return (np.repeat(self.starts[:-1], n_groups) + 2 * number)[1:]


def encode_sentences(
    tokenizer: Tokenizer, sentence_break: SentenceBreak, limit: int, pieces: Sequence[Piece]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the ids of all sentences, the length of each, and the index of its document.

    The other arguments are those of `Sentences.from_texts`.
    """
    sentences: list[str] = []
    owners: list[int] = []
    for piece in pieces:
        found = [part for part in BREAKS[sentence_break].split(piece.text) if part.strip()]
        # Splitting removed the white space before all sentences but the first of a document.
        first = found[:1] if piece.begins else []
        sentences += [*first, *map(tokenizer.with_leading_space, found[len(first) :])]
        owners += [piece.document] * len(found)
    ids, n_tokens = tokenizer.encode_corpus(sentences)
    n_chunks = -(-n_tokens // limit)  # 0 for a sentence without tokens
    owner = np.repeat(np.array(owners, np.int64), n_chunks)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(n_chunks) - n_chunks, n_chunks)
    lengths = np.minimum(limit, np.repeat(n_tokens, n_chunks) - number * limit)
    return ids, lengths, owner


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
