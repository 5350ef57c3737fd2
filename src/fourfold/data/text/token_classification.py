"""DataModule for token classification (one tag for each word), and reader of tagged sentences.

Shapes: B sentences (or chunks of long sentences), T tokens of the longest of them.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch

from fourfold.core.validation import check_range
from fourfold.data.loading.batches import TokenBatch
from fourfold.data.loading.datamodule import BatchedDataset
from fourfold.data.loading.length_bucketing import LengthBucketedOrder
from fourfold.data.loading.ragged import RaggedArray
from fourfold.data.readers.labels import check_labels
from fourfold.data.readers.splits import read_rows
from fourfold.data.readers.text_table import is_text, read_json_lines
from fourfold.data.text.base import LabelledDataModule, text_data
from fourfold.errors import InputError, reading
from fourfold.losses import IGNORE_INDEX
from fourfold.text_files import read_lines
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig


@dataclass(frozen=True)
class Sentence:
    """Sentence of words with one tag each; `location` (such as "train.conll:7") is for messages."""

    words: list[str]
    tags: list[str]
    location: str


def read_tagged_sentences(path: str, word: int | str, tag: int | str) -> list[Sentence]:
    """Read the tagged sentences of one file, in CoNLL columns or JSON lines.

    Each line of a .jsonl or .json file is a sentence, such as `{"tokens": [...], "tags": [...]}`.
    The keys may have other names. Each line of any other file is a word with its tag and other
    columns, separated by tabs or spaces. An empty line ends a sentence. A line `-DOCSTART-`
    separates documents. CoNLL-U files, which are read with `word=1` and `tag=3`, also contain
    comments, multiword ranges (with an id such as 2-3) and empty nodes (with an id such as 2.1),
    which are skipped, as are the lines in GermEval files that name the source of a sentence.

    Args:
        path: Plain or compressed file; a relative path may also lie under $FOURFOLD_DATA.
        word: Index of the column with the words; for JSON lines, the key of the words.
        tag: Index of the column with the tags (-1 is the last); for JSON lines, the key of the
            tags.

    Raises:
        InputError: If the file cannot be read or has no sentence, if a line has too few columns or
            is not valid JSON, or if the numbers of words and tags of a sentence differ.
    """
    is_json = not {".jsonl", ".json"}.isdisjoint(Path(path).suffixes)
    sentences = list((_read_json if is_json else _read_columns)(path, word, tag))
    if not sentences:
        raise InputError("the file has no sentence", file=path)
    return sentences


def _read_columns(path: str, word: int | str, tag: int | str) -> Iterator[Sentence]:
    lines = read_lines(path)
    # In a file with tabs, a comment has no tab; without this rule the word "#" would be a comment.
    has_tabs = any("\t" in line for line in lines if not line.startswith("#"))
    has_word_numbers = 0 not in (word, tag)
    pairs: list[tuple[str, str]] = []
    first_line = 1
    for number, line in enumerate([*lines, ""], start=1):
        line = line.strip("\ufeff")  # concatenated files have byte order marks between them
        # Only spaces: a no-break space may be part of a word.
        fields = line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))
        if not line.strip() or fields[0] == "-DOCSTART-":
            if pairs:
                words, tags = map(list, zip(*pairs, strict=True))
                yield Sentence(words, tags, f"{path}:{first_line}")
            pairs = []
            continue
        if line.startswith("#") and has_tabs != ("\t" in line):  # comment (CoNLL-U, MultiCoNER)
            continue
        # Skips ranges of words, words that are not in the text (CoNLL-U), and sources (GermEval).
        if has_word_numbers and re.fullmatch(r"\d+[-.]\d+|#", fields[0]):
            continue
        first_line = first_line if pairs else number
        try:
            pairs.append((fields[int(word)].strip(), fields[int(tag)].strip()))
        except (IndexError, ValueError) as error:
            message = f"the line has no columns {word!r} and {tag!r}, numbered from 0: {line!r}"
            raise InputError(message, file=path, line=number) from error
        if len(fields) < 2 or not all(pairs[-1]):
            raise InputError(f"the word has no tag: {line!r}", file=path, line=number)


def _read_json(path: str, word: int | str, tag: int | str) -> Iterator[Sentence]:
    for number, record in read_json_lines(path):
        location = f"{path}:{number}"
        with reading(location):
            lists = [record[str(key)] for key in (word, tag)]
            if not all(isinstance(x, list) and all(map(is_text, x)) for x in lists):
                raise InputError(f"{word!r} and {tag!r} must be lists of texts", file=location)
            words, tags = ([str(item) for item in x] for x in lists)
            if len(words) != len(tags):
                message = f"there are {len(words)} words, but {len(tags)} tags"
                raise InputError(message, file=location)
        if words:
            yield Sentence(words, tags, location)


@dataclass(eq=False)
class TokenDataset(BatchedDataset):
    """Dataset of tagged sentences, in which each example is a chunk of a sentence.

    A sentence that is too long for the model is divided into several chunks. The label of a word's
    first token is the class of its tag, and other tokens have IGNORE_INDEX. `chunk_keys` has the
    index of the sentence in the split, and of the chunk in the sentence.
    """

    ids: RaggedArray
    labels: RaggedArray
    chunk_keys: list[tuple[int, int]]
    pad_id: int
    order: LengthBucketedOrder

    def batch(self, rows: np.ndarray, epoch: int, position: int) -> TokenBatch:
        ids, mask = self.ids.padded(rows, self.pad_id)  # (B, T)
        labels, _ = self.labels.padded(rows, IGNORE_INDEX)
        return TokenBatch(ids, labels, mask, torch.from_numpy(rows), epoch, position)


@text_data
class TokenData(LabelledDataModule):
    """DataModule for sentences with a tag for each word (named entities, parts of speech).

    The model predicts the tag of a word at the first token of the word. A sentence of more than
    `max_len` tokens is divided between words into several chunks, and scored as one sentence.

    Args:
        train: One or several files in CoNLL columns or JSON lines, plain or compressed, also looked
            up under $FOURFOLD_DATA.
        word: Index of the column with the words; for JSON lines, the key of the words.
        tag: Index of the column with the tags (-1 is the last); for JSON lines, the key of the
            tags.
        tags: Tags in the order of their class numbers; by default the sorted tags of the training
            split, with the tag O first.

    Example:
        >>> data = TokenData("train.conll", val=0.1, tags=["O", "B-PER", "I-PER"])
        >>> data.split_sources
        {'train': 'train.conll', 'val': 0.1, 'test': None}
    """

    batch_class = TokenBatch
    artifact_names = ("max_len", "class_names")

    train: str | list[str] = field()
    _: KW_ONLY
    word: int | str = 0
    tag: int | str = -1
    tags: list[str] | None = None

    def __post_init__(self, tokenizer: TokenizerConfig) -> None:
        super().__post_init__(tokenizer)
        check_range("max_len", self.max_len, minimum=3)
        self._class_names = self.tags

    def read(self) -> dict[str, list[Sentence]]:
        read = partial(read_tagged_sentences, word=self.word, tag=self.tag)
        raw = read_rows(self.split_sources, read, lambda item: " ".join(item.words))
        if self._class_names is None:
            train = raw["train"]
            tags = dict.fromkeys(tag for sentence in train for tag in sentence.tags)
            check_labels(tags, lambda tag: next(s.location for s in train if tag in s.tags))
            self._class_names = sorted(tags, key=lambda tag: (tag != "O", tag))
        return raw

    def training_texts(self, raw: Sequence[Sentence]) -> Sequence[str]:
        return [" ".join(sentence.words) for sentence in raw]

    def encode(self, name: str, raw: Sequence[Sentence], tokenizer: Tokenizer) -> TokenDataset:
        class_names = self._class_names or []
        class_of_tag = {tag: number for number, tag in enumerate(class_names)}
        encoded = tokenizer.encode_words([sentence.words for sentence in raw])
        limit = self.max_len - 2  # without BOS and EOS
        chunks: list[tuple[list[int], list[int]]] = []  # token ids and labels
        chunk_keys: list[tuple[int, int]] = []
        for number, (sentence, words) in enumerate(zip(raw, encoded, strict=True)):
            # A sentence is divided between words into chunks that fit into `max_len`.
            divided: list[tuple[list[int], list[int]]] = [([], [])]
            for ids, tag in zip(words, sentence.tags, strict=True):
                if tag not in class_of_tag:
                    message = f"the tag must be one of {', '.join(class_names[:20])}, got {tag!r}"
                    raise InputError(message, file=sentence.location)
                if len(ids) > limit:
                    message = f"a word has {len(ids)} tokens, but a row of max_len={self.max_len}"
                    raise InputError(f"{message} has only {limit}", file=sentence.location)
                if len(divided[-1][0]) + len(ids) > limit:
                    divided.append(([], []))
                divided[-1][0].extend(ids)
                divided[-1][1].extend([class_of_tag[tag], *[IGNORE_INDEX] * (len(ids) - 1)])
            chunks += divided
            chunk_keys += [(number, i) for i in range(len(divided))]
        rows, labels = map(RaggedArray.from_rows, zip(*chunks, strict=True))
        rows = rows.wrap(tokenizer.bos_id, tokenizer.eos_id)
        labels = labels.wrap(IGNORE_INDEX, IGNORE_INDEX)
        order = self.batch_order(name, rows.lengths, max_rows=self.batch_sizes[name])
        return TokenDataset(rows, labels, chunk_keys, tokenizer.pad_id, order)
