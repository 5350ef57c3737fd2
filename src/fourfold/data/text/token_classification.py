"""TokenData: DataModule for token classification, with one tag per word (NER, part of speech).

Shapes: B rows, T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch

from fourfold.data.loading.batch_order import LengthBucketedOrder
from fourfold.data.loading.batches import TokenBatch
from fourfold.data.loading.datamodule import BatchedDataset, batch_sizes
from fourfold.data.loading.ragged import RaggedArray
from fourfold.data.readers.conll import Sentence, read_tagged_sentences
from fourfold.data.readers.splits import SplitSource, read_splits
from fourfold.data.text.base import TextDataModule
from fourfold.errors import InputError
from fourfold.losses import IGNORE_INDEX
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig


@dataclass(frozen=True)
class SentenceChunk:
    """Chunk of a sentence that fits into a row.

    Args:
        sentence: Number of the sentence in the split.
        number: Number of the chunk in the sentence.
        ids: Token ids.
        labels: Class of each word at its first token, IGNORE_INDEX at other tokens.
    """

    sentence: int
    number: int
    ids: list[int]
    labels: list[int]


class TokenDataset(BatchedDataset):
    """Dataset of sentence chunks, from BOS to EOS.

    Args:
        chunks: Rows.
        tokenizer: Tokenizer with the special tokens.
        order: Arguments of `LengthBucketedOrder`.
    """

    def __init__(self, chunks: Sequence[SentenceChunk], tokenizer: Tokenizer, **order: Any) -> None:
        lengths = np.array([len(chunk.ids) for chunk in chunks])
        ids = np.array(list(chain.from_iterable(chunk.ids for chunk in chunks)), np.int64)
        labels = np.array(list(chain.from_iterable(chunk.labels for chunk in chunks)), np.int64)
        self.ids = RaggedArray.from_lengths(ids, lengths).wrap(tokenizer.bos_id, tokenizer.eos_id)
        self.labels = RaggedArray.from_lengths(labels, lengths).wrap(IGNORE_INDEX, IGNORE_INDEX)
        self.chunk_keys = [(chunk.sentence, chunk.number) for chunk in chunks]
        self.pad_id = tokenizer.pad_id
        self.order = LengthBucketedOrder(self.ids.lengths, **order)

    def batch(self, rows: np.ndarray, epoch: int, position: int) -> TokenBatch:
        ids, mask = self.ids.padded(rows, self.pad_id)  # (B, T)
        labels, _ = self.labels.padded(rows, IGNORE_INDEX)
        return TokenBatch(ids, labels, mask, torch.from_numpy(rows), epoch, position)


class TokenData(TextDataModule):
    """Sentences with a tag for each word (entities, parts of speech).

    The class of a word is learned and predicted at its first token. A sentence that is too long for
    a row is divided between words into several rows, and scored as one sentence.

    Args:
        train: One or several files in a format of `read_tagged_sentences`, plain or compressed,
            also looked up under $FOURFOLD_DATA.
        val: As `train`, or a fraction of its sentences to hold out.
        test: As `val`.
        word: Number of the column with the word, or its key in JSON lines.
        tag: Number of the column with the tag (-1 is the last), or its key in JSON lines.
        tags: Tags in the order of their class numbers; by default the sorted tags of the training
            split, O first.
        tokenizer: Tokenizer to train or load; by default a WordPiece.
        max_len: Maximum tokens of a row, special tokens included.
        batch_size: Rows of a training batch.
        eval_batch_size: Rows of a validation or test batch, by default `batch_size`.
        seed: Seed of shuffling, together with the epoch.
        num_workers: Worker processes that prepare batches.

    Raises:
        InputError: If an option is invalid; on setup, if files are missing, empty or corrupted, if
            a tag is unknown, or if a word has more tokens than a row.
    """

    batch_class = TokenBatch

    def __init__(
        self,
        train: str | list[str],
        val: SplitSource = None,
        test: SplitSource = None,
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
            raise InputError(f"must be at least 3, got {max_len}", option="max_len")
        if tags is not None and not tags:
            raise InputError("must name at least one tag, got []", option="tags")
        self.split_sources: dict[str, SplitSource] = {"train": train, "val": val, "test": test}
        self.word_column = word
        self.tag_column = tag
        self._tags = tags
        self.max_len = max_len
        self.batch_sizes = batch_sizes(batch_size, eval_batch_size)

    def read(self) -> dict[str, list[Sentence]]:
        """Read the sentences of each split."""
        raw = read_splits(
            self.split_sources,
            lambda file: read_tagged_sentences(file, self.word_column, self.tag_column),
            lambda sentence: " ".join(sentence.words),
        )
        if self._tags is None:
            tags = {tag for sentence in raw["train"] for tag in sentence.tags}
            self._tags = sorted(tags, key=lambda tag: (tag != "O", tag))
        return raw

    def training_texts(self, raw: Sequence[Sentence]) -> Sequence[str]:
        return [" ".join(sentence.words) for sentence in raw]

    def encode(self, name: str, raw: Sequence[Sentence], tokenizer: Tokenizer) -> TokenDataset:
        class_of_tag = {tag: number for number, tag in enumerate(self.class_tags)}
        encoded = tokenizer.encode_words([sentence.words for sentence in raw])
        chunks = []
        for number, (sentence, word_ids) in enumerate(zip(raw, encoded, strict=True)):
            for tag in sentence.tags:
                if tag not in class_of_tag:
                    tags = ", ".join(self.class_tags[:20])
                    message = f"the tag must be one of {tags}, got {tag!r}"
                    raise InputError(message, file=sentence.location)
            classes = [class_of_tag[tag] for tag in sentence.tags]
            chunks += self._divide(number, word_ids, classes, sentence.location)
        is_train = name == "train"
        max_rows = self.batch_sizes["train" if is_train else "other"]
        return TokenDataset(chunks, tokenizer, max_rows=max_rows, seed=self.seed, shuffle=is_train)

    def _divide(
        self, sentence: int, word_ids: list[list[int]], classes: list[int], location: str
    ) -> list[SentenceChunk]:
        """Divide a sentence between words into chunks that fit into a row."""
        limit = self.max_len - 2
        chunks = [SentenceChunk(sentence, 0, [], [])]
        for ids, label in zip(word_ids, classes, strict=True):
            if len(ids) > limit:
                message = f"a word has {len(ids)} tokens, but a row of max_len={self.max_len} has"
                raise InputError(f"{message} only {limit}", file=location)
            if len(chunks[-1].ids) + len(ids) > limit:
                chunks.append(SentenceChunk(sentence, len(chunks), [], []))
            chunks[-1].ids.extend(ids)
            chunks[-1].labels.extend([label, *[IGNORE_INDEX] * (len(ids) - 1)])
        return chunks

    @property
    def class_tags(self) -> list[str]:
        """Tags of the K classes, after the data are read."""
        assert self._tags is not None
        return self._tags

    @property
    def n_classes(self) -> int:
        """Number of classes K."""
        self.setup()
        return len(self.class_tags)

    def chunk_keys(self, split: str) -> list[tuple[int, int]]:
        """Return the numbers of sentence and chunk of each row; `batch.rows` indexes the list."""
        dataset = self.split(split)
        assert isinstance(dataset, TokenDataset)
        return dataset.chunk_keys

    def artifacts(self) -> dict[str, Any]:
        """Return tokenizer, tags and maximum length."""
        self.setup()
        return super().artifacts() | {"class_names": self.class_tags, "max_len": self.max_len}
