"""Encoding of documents into arrays for the cache, in pieces, with worker processes.

Memory holds only the pieces that are encoded at the moment, never all texts or tokens.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from fourfold.data.loading.array_cache import Arrays
from fourfold.data.loading.datamodule import identity
from fourfold.data.readers.documents import Cut, Documents, Piece
from fourfold.data.text.packing import BREAKS, SentenceBreak, TokenStream, encode_sentences
from fourfold.errors import InputError
from fourfold.text_files import resolve
from fourfold.tokenization.tokenizer import Tokenizer

_ITEM_CHARS = 1 << 20  # characters that are encoded together
_CHARS_PER_PIECE = 800  # added for each piece, whose encoding also needs a fixed memory
_CONTEXT = 200  # characters before and after a boundary that are encoded to examine it
_BOUNDARIES = 50  # that are examined before more text is read
_SENTENCE_CHARS = 1 << 18  # a sentence with more characters may be divided
_GAP = re.compile(r"(?<=\S)\s+(?=\S)")
_METASPACE = re.compile(r"(?<=\S) ")  # no tokenizer of the kinds bpe and unigram sees this space
_BEFORE_SPACE = re.compile(r"(?<=\S)(?=\s)")


def token_dtype(tokenizer: Tokenizer) -> type[np.unsignedinteger[Any]]:
    """Return the smallest type of the token ids, uint16 or uint32."""
    return np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32


def token_cut(tokenizer: Tokenizer) -> Cut:
    """Return a function that finds white space where a text can be divided for the tokenizer.

    The ids of the parts together are then those of the text: those of the characters on both sides
    are compared. The white space belongs to the part before or after, or one character to neither.
    """

    def cut(text: str, start: int) -> tuple[int, int] | None:
        for match in islice(_GAP.finditer(text, start, len(text) - _CONTEXT), _BOUNDARIES):
            first, last = match.span()
            for begin, end in ((last, last), (first, first), (first, first + 1)):
                left, right = text[max(0, begin - _CONTEXT) : begin], text[end : end + _CONTEXT]
                whole = tokenizer.encode(left + text[begin:end] + right)
                if whole == tokenizer.encode(left) + tokenizer.encode(right):
                    return begin, end
        return None

    return cut


def _sentence_cut(tokenizer: Tokenizer, sentence_break: SentenceBreak) -> Cut:
    """Return a function that finds a boundary of sentences, or else of tokens in a long text."""

    def cut(text: str, start: int) -> tuple[int, int] | None:
        match = BREAKS[sentence_break].search(text, start)
        is_long = len(text) - start > _SENTENCE_CHARS
        return match.span() if match else token_cut(tokenizer)(text, start) if is_long else None

    return cut


def divided_texts(documents: Documents, *, metaspace: bool) -> Documents:
    """Return the pieces of documents, on which a tokenizer is trained, as documents."""
    boundary = _METASPACE if metaspace else _BEFORE_SPACE

    def cut(text: str, start: int) -> tuple[int, int] | None:
        match = boundary.search(text, start)
        return match and match.span()

    return Documents(lambda: (("", (piece.text,)) for piece in documents.pieces(cut)))


def stream_arrays(documents: Documents, tokenizer: Tokenizer, num_workers: int) -> Iterator[Arrays]:
    """Encode documents, and yield consecutive parts of the arrays of a `TokenStream`."""
    eos_id, dtype = tokenizer.eos_id, token_dtype(tokenizer)
    zero = np.zeros(1, np.int64)
    yield {"ids": np.array([eos_id], dtype), "offsets": zero, "bytes": zero, "words": zero}
    pieces = documents.pieces(token_cut(tokenizer))
    total = np.zeros((3, 1), np.int64)
    for ids, sizes, ends in _encoded(pieces, partial(_encode_stream, tokenizer), num_workers):
        before = total + sizes.cumsum(1)
        total = before[:, -1:]
        offsets, n_bytes, n_words = before[:, ends]
        yield {"ids": ids, "offsets": offsets, "bytes": n_bytes, "words": n_words}


def _encode_stream(
    tokenizer: Tokenizer, pieces: list[Piece]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ids with an EOS after each document, (3, pieces) sizes, and the mask of last pieces.

    The sizes are the numbers of tokens, of UTF-8 bytes and of words.
    """
    ids: list[int] = []
    sizes = []
    for piece, encoded in zip(
        pieces, tokenizer.encode_batch([p.text for p in pieces]), strict=True
    ):
        ids += [*encoded, tokenizer.eos_id] if piece.ends else encoded
        n_bytes = len((piece.text + piece.gap).encode())
        sizes.append((len(encoded) + piece.ends, n_bytes, len(piece.text.split())))
    ends = np.array([piece.ends for piece in pieces])
    return np.array(ids, token_dtype(tokenizer)), np.array(sizes, np.int64).T, ends


def sentence_arrays(
    documents: Documents,
    tokenizer: Tokenizer,
    sentence_break: SentenceBreak,
    limit: int,
    num_workers: int,
) -> Iterator[Arrays]:
    """Encode the sentences of documents, and yield consecutive parts of the arrays of `Sentences`.

    The arguments are those of `Sentences.from_texts`.
    """
    dtype = token_dtype(tokenizer)
    no_ids, none = np.zeros(0, dtype), np.zeros(0, np.int64)
    yield {"ids": no_ids, "offsets": np.zeros(1, np.int64), "starts": none}
    pieces = documents.pieces(_sentence_cut(tokenizer, sentence_break))
    encode = partial(encode_sentences, tokenizer, sentence_break, limit)
    n_tokens, n_sentences, last = 0, 0, -1
    for ids, lengths, owners in _encoded(pieces, encode, num_workers):
        if len(owners):
            starts = n_sentences + np.flatnonzero(np.diff(owners, prepend=last))
            offsets = n_tokens + lengths.cumsum()
            yield {"ids": ids.astype(dtype), "offsets": offsets, "starts": starts}
            n_tokens, n_sentences, last = offsets[-1], n_sentences + len(owners), owners[-1]
    yield {"ids": no_ids, "offsets": none, "starts": np.array([n_sentences])}


def map_bin_file(path: str, tokenizer: Tokenizer) -> TokenStream:
    """Map a file of nanoGPT, which contains token ids as uint16 and nothing else.

    Raises:
        InputError: If the file is missing, has another size than that of at least two ids, or has
            an id that the tokenizer does not have.
    """
    file = resolve(path)
    n_bytes = file.stat().st_size
    if not file.is_file() or n_bytes % 2 or n_bytes < 4:
        raise InputError(f"must be a file of two or more uint16, got {n_bytes} bytes", file=path)
    ids = np.memmap(file, np.uint16, mode="r").view(np.ndarray)
    borders = [np.array([0, len(ids) - 1])]
    for begin in range(0, len(ids), _ITEM_CHARS):
        part = ids[begin : begin + _ITEM_CHARS]
        if part.max() >= tokenizer.vocab_size:
            message = f"the file has id {part.max()}, but the tokenizer has"
            raise InputError(f"{message} {tokenizer.vocab_size} entries", file=path)
        borders.append(begin + np.flatnonzero(part == tokenizer.eos_id))
    unknown = np.zeros(0, np.int64)
    return TokenStream(ids, np.unique(np.concatenate(borders)), unknown, unknown)


class _Encoded(Dataset[Any]):
    """Map from a list of pieces, in place of an index, to the result of `encode`."""

    def __init__(self, encode: Callable[[list[Piece]], Any]) -> None:
        self.encode = encode

    def __getitem__(self, pieces: list[Piece]) -> Any:
        try:
            return self.encode(pieces)
        except InputError as error:  # torch would raise a RuntimeError in its place
            return error


def _encoded(
    pieces: Iterable[Piece], encode: Callable[[list[Piece]], Any], num_workers: int
) -> Iterator[Any]:
    """Yield the results of `encode` for consecutive lists of pieces.

    Without worker processes, the tokenizer encodes with all cores.
    """
    # torch's DataLoader sends lists of pieces to its workers as it sends indices: a few ahead and
    # in order. Its own generator leaves the random numbers of the training as they are.
    loader = DataLoader(
        _Encoded(encode),
        sampler=_lists(pieces),
        batch_size=None,
        num_workers=num_workers,
        collate_fn=identity,
        worker_init_fn=_use_one_thread,
        generator=torch.Generator(),
    )
    for encoded in loader:
        if isinstance(encoded, InputError):
            raise encoded
        yield encoded


def _lists(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    found: list[Piece] = []
    n_chars = 0
    for piece in pieces:
        found.append(piece)
        n_chars += len(piece.text) + _CHARS_PER_PIECE
        if n_chars >= _ITEM_CHARS:
            yield found
            found, n_chars = [], 0
    if found:
        yield found


def _use_one_thread(worker: int) -> None:
    # A forked process has no threads of the library, which would wait for them.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
