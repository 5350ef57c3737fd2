"""DataModules for classification and regression of sentences and sentence pairs.

Shapes: B examples (sentences or sentence pairs), T tokens of the longest example.
"""

import logging
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from fourfold.core.validation import check_range
from fourfold.data.loading.batches import SequenceBatch
from fourfold.data.loading.datamodule import BatchedDataset
from fourfold.data.loading.length_bucketing import LengthBucketedOrder
from fourfold.data.loading.ragged import RaggedArray
from fourfold.data.readers.hf_datasets import HubConfig, read_hub_split
from fourfold.data.readers.labels import find_classes, parse_labels, stratified_subset
from fourfold.data.readers.splits import Source, hold_out, read_tables
from fourfold.data.readers.synthetic_translation import synthetic_pairs
from fourfold.data.readers.text_table import TextTable, read_table
from fourfold.data.readers.truncation import TooLong, limit_lengths
from fourfold.data.text.base import LabelledDataModule, text_data
from fourfold.data.text.segments import join_segments, n_special_tokens, segment_ids
from fourfold.errors import InputError
from fourfold.text_files import read_bytes
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig

log = logging.getLogger(__name__)

BUILTIN_LANGUAGES = ("en", "de")


@dataclass(eq=False)
class SequenceDataset(BatchedDataset):
    """Dataset of labelled sentences or sentence pairs.

    Args:
        rows: Token ids of each example: BOS A EOS for a sentence, BOS A EOS B EOS for a pair.
        first_lengths: (examples,) number of tokens of segment A, special tokens included.
        labels: (examples,) int64 class indices, or float32 targets of a regression; or (examples,
            K) float32, 1 for each label that an example has.
        table: Texts and locations of the examples, for predictions on test data; otherwise None.
    """

    rows: RaggedArray
    first_lengths: np.ndarray
    labels: np.ndarray
    pad_id: int
    order: LengthBucketedOrder
    table: TextTable | None = None

    def batch(self, rows: np.ndarray, epoch: int, position: int) -> SequenceBatch:
        ids, mask = self.rows.padded(rows, self.pad_id)  # (B, T)
        segments = segment_ids(self.first_lengths[rows], mask)
        labels = torch.from_numpy(self.labels[rows])
        return SequenceBatch(ids, labels, segments, mask, torch.from_numpy(rows), epoch, position)


@text_data
class SequenceData(LabelledDataModule):
    """DataModule for sentences or sentence pairs with one class or one number each.

    Files are tables (.tsv, .csv or .jsonl), in which each row is an example. If `val` or `test` is
    a fraction of the training examples to hold out, all examples with the same first sentence are
    in the same split.

    Args:
        source: "builtin" (generated dates, amounts of money and measures in English and German,
            whose class is the language), "files" (the paths in `train`, `val` and `test`) or "hub"
            (splits of a Hugging Face dataset).
        text: Column of the sentence, or the two columns of sentence pairs; indices, from 0, for a
            table without a header, otherwise names.
        label: Column of the label.
        classes: Class names in the order of their numbers; by default the sorted labels of the
            training split. None of these may be empty, begin or end with white space, or be the
            same number as another label, as 1 and 1.0.
        regression: Predict the label as a number, instead of a class.
        label_separator: Text that separates the labels in the column `label`, such as "," or " ",
            if an example has any number of labels. None means one label per example.
        hub: Hugging Face dataset; required if `source` is "hub", otherwise ignored.
        train_rows: Number of training examples to sample, so that the classes are as balanced as
            possible; None takes all training examples.
        n_separators: Number of EOS tokens between the sentences of a pair: 1 (BERT) or 2 (RoBERTa).
        too_long: Treatment of examples with more than `max_len` tokens: "truncate" (the longer
            sentence of a pair first), "error", or "drop" (training examples only; validation and
            test examples are truncated).
        draw_seed: Seed with which the `train_rows` examples are sampled.

    Attributes:
        n_texts: Number of texts of an example: 1, or 2 for sentence pairs.
        drop_uneven: Drop lines of a table with more or fewer fields than the header, instead of
            raising InputError.

    Example:
        >>> data = SequenceData(batch_size=4)  # built-in sentences in two languages
        >>> batch = next(iter(data.train_dataloader()))
        >>> data.class_names, batch.labels.shape
        (['de', 'en'], torch.Size([4]))
    """

    batch_class = SequenceBatch
    artifact_names = ("max_len", "class_names", "n_separators", "n_texts")
    drop_uneven: ClassVar[bool] = False

    source: Source = "builtin"
    _: KW_ONLY
    text: int | str | list[int | str] = "text"
    label: int | str = "label"
    classes: list[str] | None = None
    regression: bool = False
    label_separator: str | None = None
    hub: HubConfig | None = None
    train_rows: int | None = None
    n_separators: Literal[1, 2] = 1
    too_long: TooLong = "truncate"
    draw_seed: int = 0

    def __post_init__(self, tokenizer: TokenizerConfig) -> None:
        super().__post_init__(tokenizer)
        names = self.text if isinstance(self.text, list) else [self.text]
        self.n_texts = len(names)
        if self.n_texts not in (1, 2):
            raise InputError(f"must name one or two columns, got {self.n_texts}", option="text")
        check_range("max_len", self.max_len, minimum=2 + 2 * self.n_texts)
        self.columns = [*map(str, names), str(self.label)]
        self._class_names = self.classes

    def read(self) -> dict[str, TextTable]:
        """Read the examples of each split, with the labels in the last column."""
        # Splits may share second sentences, since a sentence such as "yes" is common.
        divide = partial(hold_out, n_columns=1)
        raw = read_tables(self.source, self.split_sources, self.builtin, self._read_split, divide)
        labels = raw["train"].columns[-1]
        if not self.regression and self._class_names is None:
            self._class_names = find_classes(labels, raw["train"], self.label_separator)
        if self.train_rows is not None:
            is_one_class = self.regression or self.label_separator
            groups = np.zeros(len(labels)) if is_one_class else np.array(labels)
            kept = stratified_subset(groups, self.train_rows, self.draw_seed)
            raw["train"] = raw["train"].select(kept)
        return raw

    @staticmethod
    def builtin() -> dict[str, TextTable]:
        """Return the sentences of the built-in translation pairs; the class is the language."""
        splits = {}
        for name, pairs in synthetic_pairs(*BUILTIN_LANGUAGES, n_train=2000).items():
            tables = [
                replace(pairs, columns=[texts, [language] * len(texts)])
                for language, texts in zip(BUILTIN_LANGUAGES, pairs.columns, strict=True)
            ]
            splits[name] = TextTable.concat(tables)
        return splits

    def _read_split(self, names: list[str]) -> TextTable:
        if self.source == "hub":
            return read_hub_split(self.hub, "+".join(names), self.columns)
        return TextTable.concat([self._read_file(file) for file in names])

    def _read_file(self, file: str) -> TextTable:
        return read_table(file, self.columns, drop_uneven=self.drop_uneven)

    def training_texts(self, raw: TextTable) -> Sequence[str]:
        return [text for column in raw.columns[:-1] for text in column]

    def encode(self, name: str, raw: TextTable, tokenizer: Tokenizer) -> SequenceDataset:
        empty = [i for i, row in enumerate(zip(*raw.columns[:-1], strict=True)) if "" in row]
        if empty:
            message = "%s: %d of %d rows have an empty text, the first of them %s"
            log.warning(message, name, len(empty), len(raw), raw.location(empty[0]))
        encoded = map(tokenizer.encode_corpus, raw.columns[:-1])
        columns = [RaggedArray.from_lengths(*texts) for texts in encoded]
        sizes = np.sum([column.lengths for column in columns], axis=0)
        sizes += n_special_tokens(len(columns), self.n_separators)
        columns, raw = limit_lengths(columns, raw, self.max_len, self.too_long, name, lengths=sizes)
        rows, first_lengths = join_segments(columns, tokenizer, self.max_len, self.n_separators)
        labels = self.encode_labels(raw)
        order = self.batch_order(name, rows.lengths, max_rows=self.batch_sizes[name])
        table = raw if name == "test" else None
        return SequenceDataset(rows, first_lengths, labels, tokenizer.pad_id, order, table)

    def encode_labels(self, raw: TextTable) -> np.ndarray:
        """Return the labels of a split: int64 class indices or float32 targets (examples,).

        With `label_separator`, they are 1 or 0 for each label, (examples, K) float32.
        """
        options = self._class_names, self.label_separator, self.regression
        return parse_labels(raw.columns[-1], raw, *options)[0]

    def artifacts(self) -> dict[str, Any]:
        return super().artifacts() | ({"multi_label": True} if self.label_separator else {})


@text_data
class FixedData(SequenceData):
    """Base class of the DataModules for published files, which know columns and classes."""

    source: Source = field(default="files", init=False)
    text: int | str | list[int | str] = field(default="text", init=False)
    label: int | str = field(default="label", init=False)
    classes: list[str] | None = field(default=None, init=False)
    regression: bool = field(default=False, init=False)
    label_separator: None = field(default=None, init=False)
    hub: None = field(default=None, init=False)
    too_long: TooLong = field(default="truncate", init=False)
    draw_seed: int = field(default=0, init=False)
    train: str = field(default="", init=False)
    test: str = field(default="", init=False)


@text_data
class TrecData(FixedData):
    """DataModule for the question classification of TREC (Li and Roth 2002).

    A line of the files is ``COARSE:fine question`` in Latin-1. A recorded table of results is
    trained on them; for files of your own, use `SequenceData`.

    Args:
        folder: Folder or archive (`trec_qc.zip/qc`) with `train.txt` and `test.txt`, 5,452 and 500
            questions; also looked up under $FOURFOLD_DATA.
        fine: Use the 50 fine classes, such as LOC:city, instead of the six coarse ones.
        val: Validation split: fraction of the training questions to hold out, or one or several
            files; None means no validation split.

    Example:
        >>> TrecData("trec_qc.zip/qc").split_sources["train"]
        'trec_qc.zip/qc/train.txt'
    """

    n_separators: Literal[1, 2] = field(default=1, init=False)
    folder: str = "text_classification/trec_qc.zip/qc"
    fine: bool = False

    def __post_init__(self, tokenizer: TokenizerConfig) -> None:
        self.train, self.test = f"{self.folder}/train.txt", f"{self.folder}/test.txt"
        super().__post_init__(tokenizer)

    def _read_file(self, file: str) -> TextTable:
        lines = read_bytes(file).decode("latin-1").removesuffix("\n").split("\n")
        labels, questions = [], []
        for number, line in enumerate(lines, start=1):
            label, _, question = line.partition(" ")
            if ":" not in label or not question.strip():
                raise InputError("must have the form COARSE:fine question", file=file, line=number)
            labels.append(label if self.fine else label.partition(":")[0])
            questions.append(question)
        return TextTable.from_columns([questions, labels], f"{file}:")
