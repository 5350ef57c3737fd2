"""Class Tokenizer: conversion of text to token ids and back with the `tokenizers` library.

Special tokens have five roles: padding, begin, end, unknown and mask. The token of each role is
found by its name. Because of this, the JSON string alone defines a tokenizer, and no further file
has to name the special tokens.
"""

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain, count, groupby, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from fourfold.atomic_files import write_atomically
from fourfold.errors import InputError

# Names of the token of each role; newly trained tokenizers use the first. GPT-2 has one special
# token, and T5 begins the decoder input with padding. Llama 3 has <|begin_of_text|>, and Gemma
# <bos>.
_BEGINS = ("<|startoftext|>", "<|begin_of_text|>", "<bos>", "<|endoftext|>", "<pad>")
ROLES = {
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|finetune_right_pad_id|>", "<|endoftext|>"),
    "bos": ("<s>", "[CLS]", *_BEGINS),
    "eos": ("</s>", "[SEP]", "<|endoftext|>", "<|end_of_text|>", "<eos>"),
    "unk": ("<unk>", "[UNK]", "<|endoftext|>"),
    "mask": ("<mask>", "[MASK]"),
}
SENTINEL = "<extra_id_{}>"  # T5
# Characters that stand for white space in the tokens of byte-level BPE, SentencePiece and others.
# A space belongs to the word after the space.
_LINE_BREAKS = "Ċĉč\n\t\r"
_SPACES = "▁Ġ " + _LINE_BREAKS
_BATCH_CHARS = 1 << 24  # characters that all cores encode together
# Added to the number of characters of a text, because each encoding also needs a fixed memory.
_CHARS_PER_TEXT = 800


class Tokenizer:
    """Trained tokenizer, which encodes text to token ids, with the ids of its special tokens.

    Text that looks like a special token, such as `<unk>` in a corpus, is encoded as text. The end
    token replaces a missing padding or unknown token if there is a begin token.

    Args:
        backend: Tokenizer of the `tokenizers` library.
        name: Name of the tokenizer in error messages, usually the path of its file.

    Attributes:
        pad_id: Id of the padding token.
        bos_id: Id of the token that begins a text (BERT: `[CLS]`).
        eos_id: Id of the token that ends a text (BERT: `[SEP]`).
        unk_id: Id of the unknown token.
        mask_id: Id of the mask token, or None.
        prepended_id: `bos_id` if the post-processor of `backend` puts that token before each text
            (BART), otherwise None.
        special_ids: Sorted ids of all special tokens.

    Raises:
        InputError: If the vocabulary has no padding, begin, end or unknown token.

    Example:
        >>> from fourfold.tokenization.training import TokenizerConfig, train_tokenizer
        >>> config = TokenizerConfig(kind="byte_bpe", vocab_size=270)
        >>> tokenizer = train_tokenizer(config, ["the cat and the hat"] * 3, mask=True)
        >>> tokenizer.decode(tokenizer.encode("the hat")), tokenizer.vocab_size
        ('the hat', 270)
    """

    def __init__(self, backend: tokenizers.Tokenizer, name: str = "the tokenizer") -> None:
        backend.encode_special_tokens = True
        backend.no_padding()
        backend.no_truncation()
        self.backend = backend
        self.name = name
        added = {i for i, token in backend.get_added_tokens_decoder().items() if token.special}
        ids = {role: self._first_id(names, added) for role, names in ROLES.items()}
        description = json.loads(backend.to_str())
        if ids["bos"] is not None and ids["eos"] not in (None, ids["bos"]):
            # Llama has no padding token, and byte-level tokenizers need no unknown token.
            ids |= {role: ids["eos"] for role in ("pad", "unk") if ids[role] is None}
        has_only_unk = [role for role, i in ids.items() if i is not None] == ["unk"]
        if has_only_unk and description["model"].get("end_of_word_suffix"):
            # GPT-1 has no other special token, but batches need some id for padding.
            ids |= dict.fromkeys(("pad", "bos", "eos"), ids["unk"])
        for role, names in ROLES.items():
            if ids[role] is None and role != "mask":
                message = f"the tokenizer has no {role} token: none of {', '.join(names)}"
                raise InputError(message, file=name)
        self.pad_id = ids["pad"] or 0
        self.bos_id = ids["bos"] or 0
        self.eos_id = ids["eos"] or 0
        self.unk_id = ids["unk"] or 0
        self.mask_id = ids["mask"]
        plain = self._call("encode", "a", add_special_tokens=False).ids
        templated = self._call("encode", "a", add_special_tokens=True).ids
        self._call("encode", "a", "b")  # fails if the template of pairs does
        has_bos = len(templated) > len(plain) and templated[0] == self.bos_id
        self.prepended_id = self.bos_id if has_bos else None
        self.special_ids = sorted(added | {i for i in ids.values() if i is not None})
        pre_tokenizer = json.dumps(description["pre_tokenizer"])
        is_bert = "BertPreTokenizer" in pre_tokenizer  # the kinds wordpiece and word have it
        self._is_wordpiece = description["model"]["type"] == "WordPiece" or is_bert
        self._is_byte_level = "ByteLevel" in pre_tokenizer

    def _first_id(self, names: Sequence[str], special: Collection[int]) -> int | None:
        """Return the id of the first special token, or else of the first token, of these names."""
        # Gemma's vocabulary also contains <s>, but as a tag of HTML.
        found = [i for i in map(self.backend.token_to_id, names) if i is not None]
        return next(iter([i for i in found if i in special] + found), None)

    def _call(self, method: str, *args: Any, **options: Any) -> Any:
        """Return the result of a method of the tokenizer of the `tokenizers` library."""
        with _library_errors("the tokenizer fails for this text", self.name):
            return getattr(self.backend, method)(*args, **options)

    @cached_property
    def vocab_size(self) -> int:
        """Largest token id + 1, special tokens included, which is the number of rows of a table."""
        return 1 + max(self.vocabulary.values())  # ids from somebody else may have gaps

    @cached_property
    def sentinel_ids(self) -> list[int]:
        """Ids of T5's sentinels <extra_id_0>, <extra_id_1> and so on, up to the first missing."""
        found: Any = (self.backend.token_to_id(SENTINEL.format(i)) for i in count())
        return list(takewhile(lambda i: i is not None, found))

    @property
    def vocabulary(self) -> dict[str, int]:
        """Id of each token, special tokens included."""
        return self.backend.get_vocab(with_added_tokens=True)

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens."""
        return self._call("encode", text, add_special_tokens=False).ids

    def encode_special(self, text: str) -> list[int]:
        """Return the token ids of a text, in which the texts of special tokens become their ids."""
        self.backend.encode_special_tokens = False
        try:
            return self.encode(text)
        finally:
            self.backend.encode_special_tokens = True

    @property
    def special_tokens(self) -> list[str]:
        """Texts of all special tokens, the longest first."""
        texts = (str(self.backend.id_to_token(i)) for i in self.special_ids)
        return sorted(texts, key=len, reverse=True)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of several texts, without special tokens."""
        encodings = self._call("encode_batch_fast", list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def with_leading_space(self, text: str) -> str:
        """Return a text in the form that `encode` needs if the text does not begin a sentence.

        A byte-level tokenizer encodes a word together with the space before the word, so a missing
        space is added for it. Other tokenizers leave the text unchanged.
        """
        return " " + text if self._is_byte_level and text[:1] != " " else text

    def encode_words(self, sentences: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        """Return the token ids of each word of each sentence, without special tokens.

        If the encoding of a word is empty, the result for the word is [`unk_id`].
        """
        texts = [[*words[:1], *map(self.with_leading_space, words[1:])] for words in sentences]
        options = {"is_pretokenized": True, "add_special_tokens": False}
        encodings = self._call("encode_batch", texts, **options)
        encoded: list[list[list[int]]] = []
        for words, encoding in zip(sentences, encodings, strict=True):
            pieces: list[list[int]] = [[] for _ in words]
            for token, word in zip(encoding.ids, encoding.word_ids, strict=True):
                pieces[word].append(token)  # `word_to_tokens` would search all words each time
            encoded.append([ids or [self.unk_id] for ids in pieces])
        return encoded

    def encode_with_offsets(
        self, texts: Sequence[str]
    ) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Encode texts without special tokens, and locate each token in its text.

        Returns:
            Pair (ids, spans) for each text. A span is a pair (begin, end), the indices of the
            token's first character in the text and of the character after the token. White space at
            the ends of a token is left out, except in a token of white space.
        """
        return [(encoding.ids, spans) for encoding, spans in self._located(texts)]

    def encode_with_words(self, text: str) -> tuple[list[int], list[tuple[int, int]], list[int]]:
        """Return ids and spans as `encode_with_offsets`, and the number of the word of each token.

        Words are those of the pre-tokenizer, which usually separates punctuation from words.
        """
        ((encoding, spans),) = self._located([text])
        return encoding.ids, spans, encoding.word_ids

    def _located(self, texts: Sequence[str]) -> list[tuple[Any, list[tuple[int, int]]]]:
        """Return the encoding of each text, and the span of each token."""
        # With `trim_offsets`, a post-processor takes a space that the pre-tokenizer has added for
        # a space of the text, and cuts off a character of the word.
        post_processor = self.backend.post_processor
        self.backend.post_processor = None
        try:
            encodings = self._call("encode_batch", list(texts), add_special_tokens=False)
        finally:
            self.backend.post_processor = post_processor
        return [
            (encoding, [_without_space(text, *span) for span in encoding.offsets])
            for text, encoding in zip(texts, encodings, strict=True)
        ]

    def encode_corpus(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode a corpus without special tokens, with all CPU cores.

        Returns:
            The token ids (N,) int32 of all texts, one text after another, and the number of tokens
            of each text, (n_texts,) int64.
        """
        ids = [np.zeros(0, np.int32)]
        counts: list[int] = []
        n_chars = np.cumsum([len(text) + _CHARS_PER_TEXT for text in texts])
        for _, batch in groupby(range(len(texts)), lambda i: n_chars[i] // _BATCH_CHARS):
            encoded = self.encode_batch([texts[i] for i in batch])
            counts += map(len, encoded)
            ids.append(np.fromiter(chain.from_iterable(encoded), np.int32))
        return np.concatenate(ids), np.array(counts, np.int64)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens."""
        return self._call("decode", [int(i) for i in ids], skip_special_tokens=True)

    def decode_batch(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Return the texts of several sequences of token ids, without special tokens."""
        plain = [[int(i) for i in row] for row in rows]
        return self._call("decode_batch", plain, skip_special_tokens=True)

    def word_starts(self, ids: np.ndarray) -> np.ndarray:
        """Mark the tokens of `ids`, (B, T) or (T,), at which a word begins, for whole-word masking.

        With WordPiece, and with whole words as tokens, a word begins at each token that does not
        begin with `##`; with other tokenizers, at each token that begins with white space, and
        after a line break or tab. Each special token is a word, and each row begins with a word.
        """
        begins, ends = self._word_boundaries
        starts = begins[ids]
        starts[..., 1:] |= ends[ids[..., :-1]]
        starts[..., :1] = True
        return starts

    @property
    def begins_word(self) -> np.ndarray:
        """Copy of an array (vocab_size,) bool: True if a word begins at the token."""
        return self._word_boundaries[0].copy()

    @cached_property
    def _word_boundaries(self) -> tuple[np.ndarray, np.ndarray]:
        """Two bool arrays (vocab_size,): a word begins at the token, or always after the token."""
        begins = np.zeros(self.vocab_size, bool)
        ends = np.zeros(self.vocab_size, bool)
        # A word ends at a special token and, except in WordPiece, at a line break or tab.
        for token, i in self.vocabulary.items():
            begins[i] = not token.startswith("##") if self._is_wordpiece else token[:1] in _SPACES
            ends[i] = not self._is_wordpiece and token[-1:] in _LINE_BREAKS
        begins[self.special_ids] = True
        ends[self.special_ids] = True
        return begins, ends

    def to_str(self) -> str:
        """Return the tokenizer as a JSON string, as stored in checkpoints."""
        return self.backend.to_str()

    @classmethod
    def from_str(cls, text: str, name: str = "the tokenizer") -> "Tokenizer":
        """Return the tokenizer of a JSON string; `name` is for error messages, usually its file.

        Raises:
            InputError: If the string is not a tokenizer, or has no padding, begin, end or unknown
                token.
        """
        with _library_errors("this is not a tokenizer of the `tokenizers` library", name):
            backend = tokenizers.Tokenizer.from_str(text)
        if backend.post_processor is not None:
            _check_templates(json.loads(backend.post_processor.__getstate__()), name)
        return cls(backend, name)

    def save(self, path: str | Path) -> None:
        """Write the tokenizer completely, or not at all, to a tokenizer.json of transformers."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, self.backend.to_str(pretty=True))


def _check_templates(processor: dict[str, Any], file: str) -> None:
    """Refuse a template with a special token that it does not define; the library would panic."""
    for part in processor.get("processors", [processor]):
        if part["type"] == "TemplateProcessing":
            pieces = part["single"] + part["pair"]
            used = {piece["SpecialToken"]["id"] for piece in pieces if "SpecialToken" in piece}
            if missing := sorted(used - part["special_tokens"].keys()):
                message = f"its post-processor must define the special token {missing[0]!r}"
                raise InputError(message, file=file)


def _without_space(text: str, begin: int, end: int) -> tuple[int, int]:
    """Return the bounds of `text[begin:end]` without white space at its ends, unless it is all."""
    if not (word := text[begin:end].lstrip()):
        return begin, end
    return end - len(word), end - len(word) + len(word.rstrip())


@contextmanager
def _library_errors(problem: str, file: str) -> Iterator[None]:
    """Context of a call of the `tokenizers` library, whose errors become an InputError."""
    try:
        yield
    except BaseException as error:
        # The library raises plain Exception, and a class of pyo3 that no module exports if it
        # panics, for example because a regular expression needs too many steps for the text.
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        text = " ".join(str(error).split())[:200]
        raise InputError(f"{problem}: {text}", file=file) from error
