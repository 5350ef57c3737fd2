"""SequenceData: DataModule for classification and regression of sentences and sentence pairs.

Shapes: B rows, T tokens.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from fourfold.data.loading.batch_order import LengthBucketedOrder
from fourfold.data.loading.batches import SequenceBatch
from fourfold.data.loading.datamodule import BatchedDataset, batch_sizes
from fourfold.data.loading.ragged import RaggedArray
from fourfold.data.readers.hf_datasets import HubConfig, check_hub_source, read_hub_split
from fourfold.data.readers.labels import (
    encode_labels,
    find_classes,
    parse_floats,
    stratified_subset,
)
from fourfold.data.readers.splits import SplitSource, hold_out, reject_splits_for_builtin
from fourfold.data.readers.synthetic_translation import synthetic_pairs
from fourfold.data.readers.text_table import TextTable, read_table
from fourfold.data.readers.truncation import TooLong, rows_within_limit
from fourfold.data.text.base import TextDataModule
from fourfold.errors import InputError
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig

BUILTIN_LANGUAGES = ("en", "de")
BUILTIN_ROWS = 2000


def n_special_tokens(n_texts: int, n_separators: int) -> int:
    """Return the number of special tokens that `join_segments` adds to a row."""
    return 2 + n_separators * (n_texts - 1)


def join_segments(
    columns: Sequence[RaggedArray], tokenizer: Tokenizer, max_len: int, n_separators: int
) -> tuple[RaggedArray, np.ndarray]:
    """Join sentences to rows BOS A EOS, or pairs to rows BOS A EOS B EOS.

    Rows are truncated to `max_len` tokens, the longer sentence of a pair first, as in BERT's code.

    Args:
        columns: Token ids of one or two sentences per row.
        tokenizer: Tokenizer with the special tokens.
        max_len: Maximum tokens of a row, special tokens included.
        n_separators: Number of EOS tokens between A and B: 1 (BERT) or 2 (RoBERTa).

    Returns:
        The rows, and the number of tokens of segment A in each, (rows,); all separators belong to
        segment A.
    """
    bos = tokenizer.bos_id
    eos = tokenizer.eos_id
    max_tokens = max_len - n_special_tokens(len(columns), n_separators)
    if len(columns) == 1:
        rows = columns[0].truncate(max_tokens).wrap(bos, eos)
        return rows, rows.lengths
    a_lengths, b_lengths = (column.lengths for column in columns)
    a_lengths = np.minimum(a_lengths, np.maximum(max_tokens - b_lengths, (max_tokens + 1) // 2))
    b_lengths = np.minimum(b_lengths, max_tokens - a_lengths)
    a = columns[0].truncate(a_lengths).wrap(bos, eos)
    b = columns[1].truncate(b_lengths).wrap(eos if n_separators == 2 else None, eos)
    return a.concat_rows(b), a.lengths + (n_separators - 1)


class SequenceDataset(BatchedDataset):
    """Dataset of labelled sentences or sentence pairs.

    Args:
        rows: Token ids, as `join_segments` returns them.
        first_lengths: (rows,) number of tokens of segment A.
        labels: (rows,) int64 classes, or float32 targets of a regression.
        pad_id: Id of padding.
        order: Arguments of `LengthBucketedOrder`.
    """

    def __init__(
        self,
        rows: RaggedArray,
        first_lengths: np.ndarray,
        labels: np.ndarray,
        pad_id: int,
        **order: Any,
    ) -> None:
        if not len(rows) == len(first_lengths) == len(labels):
            raise InputError(f"must have {len(rows)} rows, got {len(labels)}", option="labels")
        self.rows = rows
        self.first_lengths = first_lengths
        self.labels = labels
        self.pad_id = pad_id
        self.order = LengthBucketedOrder(rows.lengths, **order)

    def batch(self, rows: np.ndarray, epoch: int, position: int) -> SequenceBatch:
        ids, mask = self.rows.padded(rows, self.pad_id)  # (B, T)
        first_lengths = torch.from_numpy(self.first_lengths[rows])[:, None]  # (B, 1)
        segments = ((torch.arange(ids.shape[1]) >= first_lengths) & mask).long()
        labels = torch.from_numpy(self.labels[rows])
        return SequenceBatch(ids, labels, segments, mask, torch.from_numpy(rows), epoch, position)


class SequenceData(TextDataModule):
    """Sentences or sentence pairs with one class or one number each.

    Args:
        source: builtin (dates, sums and measures in words; the class is the language), files or
            hub.
        train: Source files: tables (.tsv, .csv, .jsonl; plain, .gz, .xz, .bz2 or
            `archive.zip/member`), also looked up under $FOURFOLD_DATA. Source hub: name of the
            split.
        val: As `train`, or a fraction of it to hold out. Pairs are held out by their first
            sentence.
        test: As `val`.
        text: Column of the sentence, or two columns for pairs; numbers count from 0 and mean that
            the table has no header.
        label: Column of the label.
        classes: Labels in the order of their class numbers; by default the sorted labels of the
            training rows.
        regression: Labels are numbers to predict.
        hub: Dataset for source hub.
        train_rows: Train on this number of rows only, with as equal class counts as possible.
        tokenizer: Tokenizer to train or load; by default a WordPiece.
        max_len: Maximum tokens of a row, special tokens included.
        n_separators: EOS tokens between the sentences of a pair: 1 (BERT) or 2 (RoBERTa).
        too_long: Treatment of longer rows: truncate (the longer sentence of a pair first), error,
            or drop (training only).
        batch_size: Rows of a training batch.
        eval_batch_size: Rows of a validation or test batch, by default `batch_size`.
        seed: Seed of shuffling, together with the epoch.
        draw_seed: Seed of the sample of `train_rows`.
        num_workers: Worker processes that prepare batches.

    Attributes:
        drop_uneven: Drop lines of a table whose number of columns differs from its header.

    Raises:
        InputError: If an option is invalid; on setup, if files are missing, empty or corrupted, or
            if a label is not a number or not among `classes`.
    """

    batch_class = SequenceBatch
    drop_uneven: ClassVar[bool] = False

    def __init__(
        self,
        source: Literal["builtin", "files", "hub"] = "builtin",
        train: str | list[str] | None = None,
        val: SplitSource = None,
        test: SplitSource = None,
        text: int | str | list[int | str] = "text",
        label: int | str = "label",
        classes: list[str] | None = None,
        regression: bool = False,
        hub: HubConfig | None = None,
        train_rows: int | None = None,
        tokenizer: TokenizerConfig = TokenizerConfig(kind="wordpiece"),  # noqa: B008 (frozen)
        max_len: int = 128,
        n_separators: Literal[1, 2] = 1,
        too_long: TooLong = "truncate",
        batch_size: int = 32,
        eval_batch_size: int | None = None,
        seed: int = 0,
        draw_seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__(tokenizer, seed, num_workers)
        self.text_columns = [str(name) for name in (text if isinstance(text, list) else [text])]
        n_texts = len(self.text_columns)
        if n_texts not in (1, 2):
            raise InputError(f"must name one or two columns, got {n_texts}", option="text")
        if classes is not None and len(classes) < 2:
            raise InputError(f"must name at least two classes, got {classes}", option="classes")
        if max_len < 2 + 2 * n_texts:
            message = f"must be at least {2 + 2 * n_texts}, got {max_len}"
            raise InputError(message, option="max_len")
        self.source = source
        self.split_sources: dict[str, SplitSource] = {"train": train, "val": val, "test": test}
        self.label_column = str(label)
        self._class_names = classes
        self.regression = regression
        self.hub = hub
        self.train_rows = train_rows
        self.max_len = max_len
        self.n_separators = n_separators
        self.too_long = too_long
        self.batch_sizes = batch_sizes(batch_size, eval_batch_size)
        self.draw_seed = draw_seed

    def read(self) -> dict[str, TextTable]:
        """Read the texts of each split, with the labels in the last column."""
        raw = self._builtin() if self.source == "builtin" else self._read_splits()
        labels = raw["train"].columns[-1]
        if not self.regression and self._class_names is None:
            self._class_names = find_classes(labels, raw["train"].location(0))
        if self.train_rows is not None:
            classes = np.unique(labels, return_inverse=True)[1]
            if self.regression:
                classes = np.zeros_like(classes)
            kept = stratified_subset(classes, self.train_rows, self.draw_seed)
            raw["train"] = raw["train"].select(kept)
        return raw

    def _builtin(self) -> dict[str, TextTable]:
        """Return the synthetic translation pairs, each text with its language as the class."""
        reject_splits_for_builtin(self.split_sources)
        splits = {}
        for name, pairs in synthetic_pairs(*BUILTIN_LANGUAGES, BUILTIN_ROWS).items():
            tables = []
            for language, texts in zip(BUILTIN_LANGUAGES, pairs.columns, strict=True):
                columns = [texts, [language] * len(texts)]
                tables.append(TextTable(columns, pairs.sources, pairs.source, pairs.number))
            splits[name] = TextTable.concat(tables)
        return splits

    def _read_splits(self) -> dict[str, TextTable]:
        if self.split_sources["train"] is None:
            raise InputError(f"must be given for source: {self.source}", option="data.train")
        raw: dict[str, TextTable] = {}
        for name, source in self.split_sources.items():
            if isinstance(source, float):
                # By the first sentence alone: a tenth of the second ones may be "yes".
                raw["train"], raw[name] = hold_out(raw["train"], source, name, n_columns=1)
            elif source is not None:
                raw[name] = self._read_split(source)
        return raw

    def _read_split(self, split: str | list[str]) -> TextTable:
        columns = [*self.text_columns, self.label_column]
        if self.source == "files":
            files = [split] if isinstance(split, str) else split
            tables = [read_table(file, columns, drop_uneven=self.drop_uneven) for file in files]
            return TextTable.concat(tables)
        return read_hub_split(*check_hub_source(self.source, self.hub, split), columns)

    def training_texts(self, raw: TextTable) -> Sequence[str]:
        return [text for column in raw.columns[:-1] for text in column]

    def encode(self, name: str, raw: TextTable, tokenizer: Tokenizer) -> SequenceDataset:
        columns = [
            RaggedArray.from_lengths(*tokenizer.encode_corpus(column))
            for column in raw.columns[:-1]
        ]
        lengths = np.sum([column.lengths for column in columns], axis=0)
        lengths += n_special_tokens(len(columns), self.n_separators)
        kept = rows_within_limit(lengths, raw, self.max_len, self.too_long, name)
        columns = [column.take(kept) for column in columns]
        raw = raw.select(kept)
        rows, first_lengths = join_segments(columns, tokenizer, self.max_len, self.n_separators)
        if self.regression:
            labels = parse_floats(raw.columns[-1], raw)
        else:
            labels = encode_labels(raw.columns[-1], raw, self._class_names or [])
        is_train = name == "train"
        return SequenceDataset(
            rows,
            first_lengths,
            labels,
            tokenizer.pad_id,
            max_rows=self.batch_sizes["train" if is_train else "other"],
            seed=self.seed,
            shuffle=is_train,
        )

    @property
    def class_names(self) -> list[str]:
        """Names of the K classes; empty for a regression."""
        self.setup()
        return list(self._class_names or [])

    @property
    def n_classes(self) -> int:
        """Number of classes K; 1 for a regression."""
        return 1 if self.regression else len(self.class_names)

    def artifacts(self) -> dict[str, Any]:
        """Return tokenizer, classes and the layout of a row."""
        return super().artifacts() | {
            "class_names": self.class_names,
            "max_len": self.max_len,
            "n_separators": self.n_separators,
            "n_texts": len(self.text_columns),
        }
