"""Text to numbers and back: a thin class around a tokenizer of the `tokenizers` library.

The special tokens play five roles, found by name so that one JSON string says everything: our own
tokenizers, BERT's vocabulary and GPT-2's all load the same way and need no side information.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import tokenizers

from fourfold.core.errors import InputError
from fourfold.data.ragged import Ragged
from fourfold.files import write_whole

# Role: the names it goes by, ours first. GPT-2 has one special token for everything, and T5 begins
# a text with padding.
ROLES = {
    "pad": ("<pad>", "[PAD]", "<|endoftext|>"),
    "bos": ("<s>", "[CLS]", "<|startoftext|>", "<|endoftext|>", "<pad>"),
    "eos": ("</s>", "[SEP]", "<|endoftext|>"),
    "unk": ("<unk>", "[UNK]", "<|endoftext|>"),
    "mask": ("<mask>", "[MASK]"),
}
# How the algorithms write white space inside a token. Blanks belong to the word behind them.
_BREAKS = "Ċĉč\n\t\r"
_SPACES = "▁Ġ " + _BREAKS
_CHUNK = 1 << 20
_BATCH = 20_000  # texts at once, or
_MOST = 16 * _CHUNK  # so many characters


class Tokenizer:
    """A trained tokenizer with the ids that models, batches and metrics ask for.

    Text that merely looks like a special token (a `<unk>` in a corpus) is encoded as text.

    Args:
        core: the tokenizer of the `tokenizers` library.
        name: what error messages call it, usually its file.

    Raises:
        InputError: the vocabulary has no padding, begin, end or unknown token.
    """

    def __init__(self, core: tokenizers.Tokenizer, name: str = "the tokenizer") -> None:
        core.encode_special_tokens = True
        core.no_padding()
        core.no_truncation()
        self.core = core
        found = {
            role: next((i for i in map(core.token_to_id, names) if i is not None), None)
            for role, names in ROLES.items()
        }
        described = json.loads(core.to_str())
        only_unk = [role for role, i in found.items() if i is not None] == ["unk"]
        if only_unk and described["model"].get("end_of_word_suffix"):
            # GPT-1 has no other special token, and a batch still has to be filled with something.
            found |= dict.fromkeys(("pad", "bos", "eos"), found["unk"])
        for role, names in ROLES.items():
            if found[role] is None and role != "mask":
                raise InputError(f"{name} has no {role} token: none of {', '.join(names)}.")
        self.pad_id, self.bos_id, self.eos_id, self.unk_id = (
            found[role] or 0 for role in ("pad", "bos", "eos", "unk")
        )
        self.mask_id = found["mask"]
        # What its own template puts in front of a text, if that is the begin token (BART).
        bare, whole = (
            core.encode("a", add_special_tokens=special).ids for special in (False, True)
        )
        opened = len(whole) > len(bare) and whole[0] == self.bos_id
        self.opening = self.bos_id if opened else None
        added = {i for i, token in core.get_added_tokens_decoder().items() if token.special}
        self.special_ids = sorted(added | {i for i in found.values() if i is not None})
        self._is_wordpiece = described["model"]["type"] == "WordPiece"
        self._is_metaspace = "Metaspace" in json.dumps(described["pre_tokenizer"])
        self._is_bytes = "ByteLevel" in json.dumps(described["pre_tokenizer"])
        self._starts: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def vocab_size(self) -> int:
        """Entries of the vocabulary, special tokens included."""
        return self.core.get_vocab_size(with_added_tokens=True)

    @property
    def vocabulary(self) -> dict[str, int]:
        """The id of each entry, special tokens included."""
        return self.core.get_vocab(with_added_tokens=True)

    def encode(self, text: str) -> list[int]:
        """The ids of one text, without special tokens."""
        return self.core.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of many texts, without special tokens."""
        encodings = self.core.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def behind_blank(self, text: str) -> str:
        """What to encode where `text` goes on behind a word or a sentence that came before it.

        A byte-level tokenizer knows a word in a sentence by the blank before it.
        """
        return " " + text if self._is_bytes and text[:1] != " " else text

    def encode_words(self, sentences: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        """The ids of each word of each sentence, at least one: a word without any is unknown."""
        texts = [
            [self.behind_blank(word) if i else word for i, word in enumerate(words)]
            for words in sentences
        ]
        encodings = self.core.encode_batch(texts, is_pretokenized=True, add_special_tokens=False)
        found = []
        for words, encoding in zip(sentences, encodings, strict=True):
            ids: list[list[int]] = [[] for _ in words]
            for i, word in zip(encoding.ids, encoding.word_ids, strict=True):
                if word is not None:  # no special tokens were asked for
                    ids[word].append(i)
            found.append([own or [self.unk_id] for own in ids])
        return found

    def encode_with_places(
        self, texts: Sequence[str]
    ) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """The ids of many texts, and for each id the characters [begin, end) it stands for."""
        encodings = self.core.encode_batch(list(texts), add_special_tokens=False)
        return [(encoding.ids, encoding.offsets) for encoding in encodings]

    def encode_corpus(self, texts: Sequence[str]) -> Ragged:
        """The ids of a corpus as flat arrays.

        Long texts are cut where no token can reach across, so that all cores work on them; the ids
        are those of the uncut text.
        """
        pieces, owners = [], []
        for row, text in enumerate(texts):
            for piece in cut(text, metaspace=self._is_metaspace):
                pieces.append(piece)
                owners.append(row)
        ids, lengths = [np.zeros(0, np.int32)], np.zeros(len(texts), np.int64)
        for part in _batches(pieces):
            encoded = self.encode_batch(pieces[part])
            counts = np.array([len(row) for row in encoded], np.int64)
            np.add.at(lengths, owners[part], counts)
            flat = (i for row in encoded for i in row)
            ids.append(np.fromiter(flat, np.int32, count=int(counts.sum())))
        return Ragged.from_lengths(np.concatenate(ids), lengths)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; special tokens are left out."""
        return self.core.decode([int(i) for i in ids], skip_special_tokens=True)

    def decode_batch(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The texts of many rows of ids; special tokens are left out."""
        plain = [[int(i) for i in row] for row in rows]
        return self.core.decode_batch(plain, skip_special_tokens=True)

    def word_starts(self, ids: np.ndarray) -> np.ndarray:
        """Where words begin, for whole-word masking.

        A word goes on to the next token without `##` for WordPiece, to the next white space
        otherwise. Special tokens are words of their own.

        Args:
            ids: (B, T) or (T,) ids.

        Returns:
            Bool array of the same shape.
        """
        if self._starts is None:
            self._starts = self._find_starts()
        begins, ends = self._starts
        starts = begins[ids]
        starts[..., 1:] |= ends[ids[..., :-1]]
        starts[..., :1] = True
        return starts

    def _find_starts(self) -> tuple[np.ndarray, np.ndarray]:
        """For each id: does it begin a word, and does the token after it?"""
        begins, ends = np.zeros(self.vocab_size, bool), np.zeros(self.vocab_size, bool)
        for token, i in self.vocabulary.items():
            begins[i] = not token.startswith("##") if self._is_wordpiece else token[:1] in _SPACES
            ends[i] = not self._is_wordpiece and token[-1:] in _BREAKS
        begins[self.special_ids] = True
        ends[self.special_ids] = True
        return begins, ends

    def to_str(self) -> str:
        """The tokenizer as a JSON string, which checkpoints carry."""
        return self.core.to_str()

    @classmethod
    def from_str(cls, text: str, name: str = "the tokenizer") -> Tokenizer:
        """The tokenizer of a JSON string.

        Raises:
            InputError: the string is not a tokenizer.
        """
        try:
            core = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises plain Exception
            raise InputError(
                f"{name} is not a tokenizer of the `tokenizers` library: {error}."
            ) from error
        return cls(core, name)

    def save(self, path: str | Path) -> None:
        """Writes `tokenizer.json`, which `transformers` reads too; never half of it."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, self.core.to_str(pretty=True))


def cut(text: str, *, metaspace: bool = False) -> Iterator[str]:
    """Pieces of about a million characters whose words, and whose ids, are those of the text.

    Args:
        text: any.
        metaspace: whether the tokenizer joins words with "▁", which it then puts in front of every
            piece: there, pieces end at a blank, which is dropped.
    """
    border = re.compile(r"(?<=\S) (?=\S)" if metaspace else r"(?<=\S)\n(?=\S)")
    begin = 0
    while len(text) - begin > 2 * _CHUNK and (hit := border.search(text, begin + _CHUNK)):
        yield text[begin : hit.start() if metaspace else hit.end()]
        begin = hit.end()
    yield text[begin:]


def _batches(pieces: Sequence[str]) -> Iterator[slice]:
    """So many at a time that all cores have work, and that what comes of them fits into memory."""
    begin = held = 0
    for end, piece in enumerate(pieces):
        if end - begin == _BATCH or (held + len(piece) > _MOST and end > begin):
            yield slice(begin, end)
            begin, held = end, 0
        held += len(piece)
    if begin < len(pieces):
        yield slice(begin, len(pieces))
