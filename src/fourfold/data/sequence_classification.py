"""Labelled sentences and pairs of sentences out of any table: `SequenceData`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from fourfold.core.errors import InputError
from fourfold.data.batch import SequenceBatch
from fourfold.data.datamodule import batch_sizes
from fourfold.data.embedded_pairs import embedded_pairs
from fourfold.data.hub import HubConfig, from_hub, read_hub
from fourfold.data.labels import class_numbers, draw, find_classes, numbers
from fourfold.data.limits import TooLong, rows_that_fit
from fourfold.data.pairs import hold_out
from fourfold.data.parts import Part, check_embedded
from fourfold.data.sequences import SequenceDataset, join_segments
from fourfold.data.sources import Rows, read_table
from fourfold.data.tokenized import TokenizedData
from fourfold.data.tokenizer import Tokenizer
from fourfold.data.tokenizer_training import TokenizerConfig


class SequenceData(TokenizedData):
    """Sentences, or pairs of them, with a class or a number each.

    Args:
        source: embedded (dates, sums and measures in words; the class is their language), files or
            hub.
        train: files: tables (.tsv, .csv, .jsonl; plain, .gz, .xz, .bz2 or `archive.zip/member`);
            relative names are also looked up under $FOURFOLD_DATA. hub: the name of the split.
        val: as `train`, or a fraction of it to hold out, of pairs by their first text.
        test: as `val`.
        text: column with the text, or two of them for pairs; numbers count from 0 and mean that
            the table has no header.
        label: column with the label.
        classes: the labels in the order of their numbers; by default those of the training rows,
            sorted.
        regression: whether labels are numbers to be predicted.
        hub: the data set, for source hub.
        train_rows: learn from so many rows only, as many of each class as can be.
        tokenizer: by default a WordPiece trained on the training split.
        max_len: most tokens of a row, special ones included.
        separators: EOS tokens between the sentences of a pair: 1 (BERT) or 2 (RoBERTa).
        too_long: what to do with longer rows: truncate (the longer sentence of a pair first),
            error, or drop (training rows only).
        batch_size: rows of a training batch.
        eval_batch_size: of a validation or test batch; None = batch_size.
        seed: decides the order, together with the epoch.
        draw_seed: decides which `train_rows` are taken.
        num_workers: processes that prepare batches.

    Raises:
        InputError: (on setup) files are missing, empty or broken; a label is no number, or none of
            `classes`.
    """

    batch_class = SequenceBatch
    drop_uneven: ClassVar[bool] = False  # lines of a table that have other columns than its header

    def __init__(
        self,
        source: Literal["embedded", "files", "hub"] = "embedded",
        train: str | list[str] | None = None,
        val: Part = None,
        test: Part = None,
        text: int | str | list[int | str] = "text",
        label: int | str = "label",
        classes: list[str] | None = None,
        regression: bool = False,
        hub: HubConfig | None = None,
        train_rows: int | None = None,
        tokenizer: TokenizerConfig = TokenizerConfig(kind="wordpiece"),  # noqa: B008 (frozen)
        max_len: int = 128,
        separators: Literal[1, 2] = 1,
        too_long: TooLong = "truncate",
        batch_size: int = 32,
        eval_batch_size: int | None = None,
        seed: int = 0,
        draw_seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__(tokenizer, seed, num_workers)
        self.texts = [str(name) for name in (text if isinstance(text, list) else [text])]
        if len(self.texts) not in (1, 2):
            raise InputError(f"text names {len(self.texts)} columns, but a row has one or two.")
        if classes is not None and len(classes) < 2:
            raise InputError(f"classes is {classes}, but there must be two at least.")
        if max_len < 2 + len(self.texts) * 2:
            raise InputError(f"max_len is {max_len}, which leaves no room for text.")
        self.source, self.label, self.hub = source, str(label), hub
        self.parts: dict[str, Part] = {"train": train, "val": val, "test": test}
        self.regression, self._class_names = regression, classes
        self.train_rows, self.draw_seed = train_rows, draw_seed
        self.max_len, self.separators, self.too_long = max_len, separators, too_long
        self.sizes = batch_sizes(batch_size, eval_batch_size)

    def read(self) -> dict[str, Rows]:
        """The texts of the splits, with their labels in the last column."""
        raw = self._embedded() if self.source == "embedded" else self.read_parts()
        labels = raw["train"].columns[-1]
        if not self.regression and self._class_names is None:
            self._class_names = find_classes(labels, raw["train"].where(0))
        if self.train_rows is not None:
            codes = np.unique(labels, return_inverse=True)[1]
            codes = np.zeros_like(codes) if self.regression else codes
            raw["train"] = raw["train"].select(draw(codes, self.train_rows, self.draw_seed))
        return raw

    def _embedded(self) -> dict[str, Rows]:
        check_embedded(self.parts)
        languages = ("en", "de")
        splits = embedded_pairs(*languages, 2000)
        return {
            name: Rows.join(
                [
                    Rows([texts, [language] * len(texts)], rows.sources, rows.source, rows.number)
                    for language, texts in zip(languages, rows.columns, strict=True)
                ]
            )
            for name, rows in splits.items()
        }

    def read_parts(self) -> dict[str, Rows]:
        """The texts and labels of the splits, out of files or hub."""
        if self.parts["train"] is None:
            raise InputError(f"source: {self.source} needs `train` in the data section.")
        raw: dict[str, Rows] = {}
        for name, part in self.parts.items():
            if isinstance(part, float):
                # Of pairs by the first text: the second may be "yes" in a tenth of all rows.
                raw["train"], raw[name] = hold_out(raw["train"], part, name, n_texts=1)
            elif part is not None:
                raw[name] = self._read_part(part)
        return raw

    def _read_part(self, part: str | list[str]) -> Rows:
        columns = [*self.texts, self.label]
        if self.source == "files":
            names = [part] if isinstance(part, str) else part
            tables = [read_table(name, columns, drop_uneven=self.drop_uneven) for name in names]
            return Rows.join(tables)
        return read_hub(*from_hub(self.source, self.hub, part), columns)

    def training_texts(self, raw: Rows) -> Sequence[str]:
        return [text for column in raw.columns[:-1] for text in column]

    def encode(self, name: str, raw: Rows, tokenizer: Tokenizer) -> SequenceDataset:
        parts = [tokenizer.encode_corpus(column) for column in raw.columns[:-1]]
        special = 2 + self.separators * (len(parts) - 1)
        lengths = np.sum([part.lengths for part in parts], axis=0) + special
        kept = rows_that_fit(lengths, raw, self.max_len, self.too_long, name)
        parts, raw = [part.take(kept) for part in parts], raw.select(kept)
        rows, first = join_segments(parts, tokenizer, self.max_len, self.separators)
        labels = raw.columns[-1]
        values = (
            numbers(labels, raw)
            if self.regression
            else class_numbers(labels, raw, self._class_names or [])
        )
        training = name == "train"
        size = self.sizes["train" if training else "other"]
        return SequenceDataset(
            rows, first, values, tokenizer.pad_id, max_rows=size, seed=self.seed, shuffle=training
        )

    @property
    def class_names(self) -> list[str]:
        """K names; none of a regression."""
        self.setup()
        return list(self._class_names or [])

    @property
    def n_classes(self) -> int:
        """K; 1 of a regression."""
        return 1 if self.regression else len(self.class_names)

    def artifacts(self) -> dict[str, Any]:
        """Tokenizer, classes, and what a row is made of."""
        return super().artifacts() | {
            "class_names": self.class_names,
            "max_len": self.max_len,
            "separators": self.separators,
            "n_texts": len(self.texts),
        }
