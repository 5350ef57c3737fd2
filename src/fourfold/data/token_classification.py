"""Tagged words for a model that reads pieces of words: `TokenData`.

Legend: B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fourfold.core.errors import InputError
from fourfold.data.batch import TokenBatch
from fourfold.data.datamodule import BatchDataset, batch_sizes
from fourfold.data.parts import Part, read_parts
from fourfold.data.ragged import Ragged
from fourfold.data.sampler import Plan
from fourfold.data.tagged import Sentence, read_tagged
from fourfold.data.tokenized import TokenizedData
from fourfold.data.tokenizer import Tokenizer
from fourfold.data.tokenizer_training import TokenizerConfig
from fourfold.losses import IGNORED


@dataclass(frozen=True)
class Piece:
    """A stretch of a sentence that fits into a row.

    Args:
        sentence: number of the sentence in the split.
        number: of the piece in the sentence.
        ids: tokens.
        labels: class of each word at its first token, IGNORED elsewhere.
    """

    sentence: int
    number: int
    ids: list[int]
    labels: list[int]


class TokenDataset(BatchDataset):
    """One split of pieces, between BOS and EOS.

    Args:
        pieces: the rows.
        tokenizer: gives the special tokens.
        plan: options of `Plan`.
    """

    def __init__(self, pieces: Sequence[Piece], tokenizer: Tokenizer, **plan: Any) -> None:
        lengths = np.array([len(piece.ids) for piece in pieces])
        ids, labels = (
            np.array([i for row in rows for i in row], np.int64)
            for rows in ([p.ids for p in pieces], [p.labels for p in pieces])
        )
        self.ids = Ragged.from_lengths(ids, lengths).wrap(tokenizer.bos_id, tokenizer.eos_id)
        self.labels = Ragged.from_lengths(labels, lengths).wrap(IGNORED, IGNORED)
        self.names = [(piece.sentence, piece.number) for piece in pieces]
        self.pad_id = tokenizer.pad_id
        self.plan = Plan(self.ids.lengths, **plan)

    def batch(self, index: np.ndarray, epoch: int, position: int) -> TokenBatch:
        ids, mask = self.ids.padded(index, self.pad_id)  # (B, T)
        labels, _ = self.labels.padded(index, IGNORED)
        return TokenBatch(ids, labels, mask, torch.from_numpy(index), epoch, position)


class TokenData(TokenizedData):
    """Sentences whose words are tagged (entities, parts of speech).

    A word's class is learned and predicted at its first token. A sentence that is too long is cut
    between words into several rows, and measured as one.

    Args:
        train: one or several files (see `read_tagged`), plain or compressed; relative names are
            also looked up under $FOURFOLD_DATA.
        val: as `train`, or a fraction of its sentences to hold out.
        test: as `val`.
        word: number of the column with the word, or its key in JSON lines.
        tag: number of the column with the tag (-1 is the last), or its key.
        tags: all of them in the order of their numbers; by default those of training, O first.
        tokenizer: by default a WordPiece trained on the training split.
        max_len: most tokens of a row, special ones included.
        batch_size: rows of a training batch.
        eval_batch_size: of a validation or test batch; None = batch_size.
        seed: decides the order, together with the epoch.
        num_workers: processes that prepare batches.

    Raises:
        InputError: (on setup) files are missing, empty or broken; a tag is not among those known;
            a word has more tokens than a row.
    """

    batch_class = TokenBatch

    def __init__(
        self,
        train: str | list[str],
        val: Part = None,
        test: Part = None,
        word: int | str = 0,
        tag: int | str = -1,
        tags: list[str] | None = None,
        tokenizer: TokenizerConfig = TokenizerConfig(kind="wordpiece"),  # noqa: B008 (frozen)
        max_len: int = 128,
        batch_size: int = 32,
        eval_batch_size: int | None = None,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__(tokenizer, seed, num_workers)
        if max_len < 3:
            raise InputError(f"max_len is {max_len}, which leaves no room for text.")
        if tags is not None and not tags:
            raise InputError("tags is [], but there must be one at least.")
        self.parts: dict[str, Part] = {"train": train, "val": val, "test": test}
        self.columns, self.max_len, self._tags = (word, tag), max_len, tags
        self.sizes = batch_sizes(batch_size, eval_batch_size)

    def read(self) -> dict[str, list[Sentence]]:
        """The sentences of the splits."""
        raw = read_parts(
            self.parts,
            lambda file: read_tagged(file, *self.columns),
            lambda sentence: " ".join(sentence.words),
        )
        if self._tags is None:
            found = {tag for sentence in raw["train"] for tag in sentence.tags}
            self._tags = sorted(found, key=lambda tag: (tag != "O", tag))
        return raw

    def training_texts(self, raw: Sequence[Sentence]) -> Sequence[str]:
        return [" ".join(sentence.words) for sentence in raw]

    def encode(self, name: str, raw: Sequence[Sentence], tokenizer: Tokenizer) -> TokenDataset:
        numbers = {tag: number for number, tag in enumerate(self.class_tags)}
        words = tokenizer.encode_words([sentence.words for sentence in raw])
        pieces = []
        for number, (sentence, ids) in enumerate(zip(raw, words, strict=True)):
            unknown = [tag for tag in sentence.tags if tag not in numbers]
            if unknown:
                known = ", ".join(self.class_tags[:20])
                raise InputError(f"{sentence.where}: the tag {unknown[0]!r} is none of {known}.")
            classes = [numbers[tag] for tag in sentence.tags]
            pieces += self._cut(number, ids, classes, sentence.where)
        training = name == "train"
        size = self.sizes["train" if training else "other"]
        return TokenDataset(pieces, tokenizer, max_rows=size, seed=self.seed, shuffle=training)

    def _cut(
        self, sentence: int, words: list[list[int]], classes: list[int], where: str
    ) -> list[Piece]:
        """As many pieces as a sentence needs."""
        room = self.max_len - 2
        pieces = [Piece(sentence, 0, [], [])]
        for ids, label in zip(words, classes, strict=True):
            if len(ids) > room:
                raise InputError(f"{where}: a word has {len(ids)} tokens, more than a row.")
            if len(pieces[-1].ids) + len(ids) > room:
                pieces.append(Piece(sentence, len(pieces), [], []))
            pieces[-1].ids.extend(ids)
            pieces[-1].labels.extend([label, *[IGNORED] * (len(ids) - 1)])
        return pieces

    @property
    def class_tags(self) -> list[str]:
        """K tags."""
        assert self._tags is not None  # the data are read
        return self._tags

    @property
    def n_classes(self) -> int:
        """K."""
        self.setup()
        return len(self.class_tags)

    def names(self, split: str) -> list[tuple[int, int]]:
        """Sentence and piece of each row; `batch.index` counts in them."""
        dataset = self.split(split)
        assert isinstance(dataset, TokenDataset)
        return dataset.names

    def artifacts(self) -> dict[str, Any]:
        """Tokenizer, tags and greatest length."""
        self.setup()
        return super().artifacts() | {"class_names": self.class_tags, "max_len": self.max_len}
