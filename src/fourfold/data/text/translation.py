"""DataModule for translation, and functions that read and join sentence pairs.

Shapes: B sentence pairs, S source tokens, T target tokens.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, InitVar, dataclass
from functools import partial
from typing import Literal, cast

import numpy as np
import torch

from fourfold.core.validation import check_range
from fourfold.data.loading.batches import PairBatch
from fourfold.data.loading.datamodule import BatchedDataset
from fourfold.data.loading.length_bucketing import LengthBucketedOrder
from fourfold.data.loading.ragged import RaggedArray
from fourfold.data.readers.hf_datasets import HubConfig, read_hub_split
from fourfold.data.readers.splits import Source, hold_out, read_tables
from fourfold.data.readers.synthetic_translation import synthetic_pairs
from fourfold.data.readers.text_table import TextTable, drop_blank, read_aligned_lines, read_table
from fourfold.data.readers.truncation import TooLong, limit_lengths
from fourfold.data.text.base import TextDataModule, text_data
from fourfold.errors import InputError
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig

JOINED_WORDS = (30, 60)  # fewest and most words of a source that `join_pairs` makes


def read_pairs(
    sources: Sequence[str], langs: tuple[str, str], columns: Sequence[str] | None
) -> TextTable:
    """Read sentence pairs from files, as a table with a source column and a target column.

    Args:
        sources: Paths of files, in one of three forms. With `columns`, the files are tables (.tsv,
            .csv or .jsonl). Without `columns`, either every path contains `{lang}`, which is
            replaced by each language, or there are two paths, a source file and a target file. Line
            n of a source file and line n of its target file form a pair.
        langs: Source and target language, such as ("en", "de").
        columns: Names of the source and the target column of tables; None if no file is a table.

    Raises:
        InputError: If a file is missing, empty or invalid, or if two files are not aligned.
    """
    if columns is not None:
        return TextTable.concat([read_table(source, columns) for source in sources])
    if sources and all("{lang}" in source for source in sources):
        pairs = [[source.replace("{lang}", lang) for lang in langs] for source in sources]
        return TextTable.concat([read_aligned_lines(pair) for pair in pairs])
    if len(sources) == 2:
        return read_aligned_lines(sources)
    message = (
        "must be [source file, target file], a name with {lang} in it, or a table with"
        " data.columns, such as '[en,de]', or '[0,1]' if the table has no header"
    )
    raise InputError(f"{message}, got {sources}", option="train, val and test")


def join_pairs(table: TextTable, n_pairs: int) -> TextTable:
    """Concatenate random pairs to `n_pairs` long pairs, whose sources have 30 to 60 words.

    The same table always gives the same long pairs. Pairs with a source of more than 30 words are
    not used.

    Raises:
        InputError: If no source has from 1 to 30 words.
    """
    n_words = np.array([len(text.split()) for text in table.columns[0]])
    short = np.flatnonzero((n_words > 0) & (n_words <= JOINED_WORDS[0]))
    if not len(short):
        message = f"no source has from 1 to {JOINED_WORDS[0]} words"
        raise InputError(message, option="joined_pairs")
    generator = np.random.default_rng(0)
    joined: list[list[int]] = []
    while len(joined) < n_pairs:
        length = generator.integers(*JOINED_WORDS, endpoint=True)
        rows: list[int] = []
        while n_words[rows].sum() < length:
            rows.append(int(generator.choice(short)))
        if n_words[rows].sum() <= JOINED_WORDS[1]:
            joined.append(rows)
    columns = [[" ".join(texts[i] for i in rows) for rows in joined] for texts in table.columns]
    return TextTable.from_columns(columns, "joined pair ")


@dataclass(eq=False)
class PairDataset(BatchedDataset):
    """Dataset of encoded sentence pairs; `texts` are their texts, for evaluation."""

    src: RaggedArray
    tgt: RaggedArray
    texts: TextTable
    pad_id: int
    order: LengthBucketedOrder

    def batch(self, rows: np.ndarray, epoch: int, position: int) -> PairBatch:
        src, src_mask = self.src.padded(rows, self.pad_id)  # (B, S)
        tgt, tgt_mask = self.tgt.padded(rows, self.pad_id)  # (B, T+1)
        return PairBatch(src, tgt, src_mask, tgt_mask, torch.from_numpy(rows), epoch, position)


@text_data
class TranslationData(TextDataModule):
    """DataModule for translation, with one vocabulary for both languages.

    A batch holds sentence pairs of similar length. Training pairs with an empty sentence are
    dropped, and their number is logged. Validation and test pairs are all scored. If `val` or
    `test` is a fraction, this fraction of the distinct source sentences is held out.

    Args:
        source: "builtin" (dates, durations, money, names and numbers in words, generated by Babel
            and num2words without a network), "files" or "hub".
        src_lang: Source language, such as "en".
        tgt_lang: Target language, such as "de".
        train: Training split. For `source` "files", the paths are `[source file, target file]`, or
            contain `{lang}`, or are tables if `columns` is given. Files may be plain, .gz, .xz,
            .bz2 or `archive.zip/member`, and are also looked up under $FOURFOLD_DATA. For `source`
            "hub", the name of a split.
        columns: Source and target column of a table or Hugging Face dataset, as indices for a table
            without a header, otherwise as names. None means plain text files, or the columns
            "translation.SRC_LANG" and "translation.TGT_LANG" of a Hugging Face dataset.
        hub: Hugging Face dataset; required if `source` is "hub", otherwise ignored.
        rows: Number of training pairs to generate if `source` is "builtin", otherwise ignored.
        tokenizer: Tokenizer to train or load; by default one BPE, trained on both languages.
        joined_pairs: Number of long pairs to add to a split by the name of the split, such as
            `{train: 4000, test: 500}`. A long pair is the concatenation of several pairs of the
            split, with 30 to 60 source words.
        max_tokens: Upper bound on the size of a batch in tokens, padding included: number of pairs
            times number of tokens of the longest sentence.
        max_rows: Upper bound on the number of pairs in a batch; None means no such bound.
        max_len: Maximum number of tokens of a source sentence (with EOS) and of a decoder input
            (with BOS).
        too_long: Treatment of pairs with a sentence above `max_len`: "error", "truncate", or "drop"
            (training pairs only; validation and test pairs are truncated).

    Example:
        >>> data = TranslationData(rows=100, max_tokens=256)  # built-in pairs, English to German
        >>> batch = next(iter(data.train_dataloader()))
        >>> batch.src.numel() <= 256, len(batch.src) == len(batch.tgt)
        (True, True)
    """

    batch_class = PairBatch
    artifact_names = ("src_lang", "tgt_lang", "max_len")

    source: Source = "builtin"
    src_lang: str = "en"
    tgt_lang: str = "de"
    _: KW_ONLY
    columns: list[int | str] | None = None
    hub: HubConfig | None = None
    rows: int = 20_000
    tokenizer: InitVar[TokenizerConfig] = TokenizerConfig()
    joined_pairs: dict[Literal["train", "val", "test"], int] | None = None
    max_tokens: int = 4096
    max_rows: int | None = None
    max_len: int = 256
    too_long: TooLong = "error"

    def __post_init__(self, tokenizer: TokenizerConfig) -> None:
        super().__post_init__(tokenizer)
        check_range("max_len", self.max_len, minimum=2)

    def read(self) -> dict[str, TextTable]:
        builtin = partial(synthetic_pairs, self.src_lang, self.tgt_lang, self.rows)
        raw = read_tables(self.source, self.split_sources, builtin, self._read_split, hold_out)
        raw["train"] = drop_blank(raw["train"])
        for name, count in (self.joined_pairs or {}).items():
            if count and name in raw:
                raw[name] = TextTable.concat([raw[name], join_pairs(raw[name], count)])
        return raw

    def _read_split(self, names: list[str]) -> TextTable:
        langs = (self.src_lang, self.tgt_lang)
        columns = None if self.columns is None else [str(column) for column in self.columns]
        if self.source == "files":
            return read_pairs(names, langs, columns)
        columns = columns or [f"translation.{lang}" for lang in langs]
        return read_hub_split(self.hub, "+".join(names), columns)

    def training_texts(self, raw: TextTable) -> Sequence[str]:
        return raw.columns[0] + raw.columns[1]

    def encode(self, name: str, raw: TextTable, tokenizer: Tokenizer) -> PairDataset:
        encoded = map(tokenizer.encode_corpus, raw.columns)
        columns = [RaggedArray.from_lengths(*texts) for texts in encoded]
        limit = self.max_len - 1 - (tokenizer.prepended_id is not None)
        (src, tgt), texts = limit_lengths(columns, raw, limit, self.too_long, name)
        # The template of some tokenizers (BART) puts a token before a text.
        src = src.wrap(before=tokenizer.prepended_id, after=tokenizer.eos_id)
        tgt = tgt.wrap(before=tokenizer.bos_id, after=tokenizer.eos_id)
        # The decoder input is one token shorter than the target.
        lengths = np.maximum(src.lengths, tgt.lengths - 1)
        order = self.batch_order(name, lengths, max_tokens=self.max_tokens, max_rows=self.max_rows)
        return PairDataset(src, tgt, texts, tokenizer.pad_id, order)

    def sources(self, split: str) -> list[str]:
        """Return the source sentences of a split; `rows` of a batch are indices into this list."""
        return cast(PairDataset, self.split(split)).texts.columns[0]

    def references(self, split: str) -> list[str]:
        """Return the target sentences of a split, as `sources` does."""
        return cast(PairDataset, self.split(split)).texts.columns[1]
