"""Sentence pairs for translation.

Legend: B rows, S source tokens, T target tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch

from fourfold.core.errors import InputError
from fourfold.data.batch import PairBatch
from fourfold.data.datamodule import BatchDataset
from fourfold.data.embedded_pairs import embedded_pairs
from fourfold.data.hub import HubConfig, from_hub
from fourfold.data.limits import TooLong, fit_lengths
from fourfold.data.pairs import hold_out, read_hub_pairs, read_pairs
from fourfold.data.parts import Part, check_embedded
from fourfold.data.ragged import Ragged
from fourfold.data.sampler import Plan
from fourfold.data.sources import Rows
from fourfold.data.tokenized import TokenizedData
from fourfold.data.tokenizer import Tokenizer
from fourfold.data.tokenizer_training import TokenizerConfig

log = logging.getLogger(__name__)


class PairDataset(BatchDataset):
    """One split of encoded pairs: the source ends with EOS, the target runs from BOS to EOS.

    A source begins with what the tokenizer puts in front of a text, of ours nothing.

    Args:
        src: (rows) source ids.
        tgt: (rows) target ids.
        texts: the raw pairs, for evaluation.
        tokenizer: gives the special tokens.
        plan: options of `Plan`.
    """

    def __init__(
        self, src: Ragged, tgt: Ragged, texts: Rows, tokenizer: Tokenizer, **plan: Any
    ) -> None:
        self.src = src.wrap(before=tokenizer.opening, after=tokenizer.eos_id)
        self.tgt = tgt.wrap(before=tokenizer.bos_id, after=tokenizer.eos_id)
        self.texts, self.pad_id = texts, tokenizer.pad_id
        # The decoder reads one token less than the target has.
        self.plan = Plan(np.maximum(self.src.lengths, self.tgt.lengths - 1), **plan)

    def batch(self, index: np.ndarray, epoch: int, position: int) -> PairBatch:
        src, src_mask = self.src.padded(index, self.pad_id)  # (B, S)
        tgt, tgt_mask = self.tgt.padded(index, self.pad_id)  # (B, T+1)
        return PairBatch(src, tgt, src_mask, tgt_mask, torch.from_numpy(index), epoch, position)


class TranslationData(TokenizedData):
    """Sentence pairs in batches of similar length, with one vocabulary for both languages.

    A training pair with an empty side is left out, and how many were is said: aligned corpora have
    lines for what was not translated. Pairs of other splits are all measured.

    Args:
        source: embedded (dates, durations, money, names and numbers in words, made by Babel and
            num2words: exact, endless, no network), files or hub.
        src_lang: language to translate from, like "en".
        tgt_lang: language to translate to, like "de".
        train: files: `[source file, target file]`, or names with `{lang}` in them, or tables when
            `columns` is given; plain, .gz, .xz, .bz2 or `archive.zip/member`; relative names are
            also looked up under $FOURFOLD_DATA. hub: the name of the split.
        val: as `train`, or a fraction of its source sentences to hold out.
        test: as `val`.
        columns: source and target column of a table or of the hub's rows; numbers count from 0 and
            mean that there is no header.
        hub: the data set, for source hub.
        rows: pairs of the embedded training split.
        tokenizer: by default a joint BPE trained on both sides of the training split.
        max_tokens: bound on the padded tokens of a batch, on its longer side.
        max_rows: bound on the pairs of a batch.
        max_len: longest source (with EOS) and longest decoder input (with BOS).
        too_long: what to do with longer ones: error, truncate, or drop (training pairs only).
        seed: decides the order, together with the epoch.
        num_workers: processes that prepare batches.

    Raises:
        InputError: (on setup) files are missing, empty, broken or of unequal length; pairs are too
            long; a language or an option is unknown.
    """

    batch_class = PairBatch

    def __init__(
        self,
        source: Literal["embedded", "files", "hub"] = "embedded",
        src_lang: str = "en",
        tgt_lang: str = "de",
        train: str | list[str] | None = None,
        val: Part = None,
        test: Part = None,
        columns: list[int | str] | None = None,
        hub: HubConfig | None = None,
        rows: int = 20_000,
        tokenizer: TokenizerConfig = TokenizerConfig(),  # noqa: B008 (frozen)
        max_tokens: int = 4096,
        max_rows: int | None = None,
        max_len: int = 256,
        too_long: TooLong = "error",
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__(tokenizer, seed, num_workers)
        if max_len < 2:
            raise InputError(f"max_len is {max_len}, but a token and EOS need 2.")
        self.source, self.langs = source, (src_lang, tgt_lang)
        self.parts: dict[str, Part] = {"train": train, "val": val, "test": test}
        self.columns = None if columns is None else [str(column) for column in columns]
        self.hub, self.rows = hub, rows
        self.max_tokens, self.max_rows = max_tokens, max_rows
        self.max_len, self.too_long = max_len, too_long

    def read(self) -> dict[str, Rows]:
        """The raw pairs of the splits."""
        if self.source == "embedded":
            check_embedded(self.parts)
            return embedded_pairs(*self.langs, self.rows)
        if self.parts["train"] is None:
            raise InputError(f"source: {self.source} needs `train` in the data section.")
        raw: dict[str, Rows] = {}
        for name, part in self.parts.items():
            if isinstance(part, float):
                raw["train"], raw[name] = hold_out(raw["train"], part, name)
            elif part is not None:
                raw[name] = self._read_part(part)
        raw["train"] = _without_empty(raw["train"])
        return raw

    def _read_part(self, part: str | list[str]) -> Rows:
        if self.source == "files":
            return read_pairs(part, self.langs, self.columns)
        return read_hub_pairs(*from_hub(self.source, self.hub, part), self.langs, self.columns)

    def training_texts(self, raw: Rows) -> Sequence[str]:
        return raw.columns[0] + raw.columns[1]

    def encode(self, name: str, raw: Rows, tokenizer: Tokenizer) -> PairDataset:
        encoded = [tokenizer.encode_corpus(column) for column in raw.columns]
        room = self.max_len - 1 - (tokenizer.opening is not None)
        (src, tgt), rows = fit_lengths(encoded, raw, room, self.too_long, name)
        return PairDataset(
            src,
            tgt,
            rows,
            tokenizer,
            max_tokens=self.max_tokens,
            max_rows=self.max_rows,
            seed=self.seed,
            shuffle=name == "train",
        )

    def sources(self, split: str) -> list[str]:
        """The raw source sentences; `batch.index` counts in them."""
        return self._dataset(split).texts.columns[0]

    def references(self, split: str) -> list[str]:
        """The raw target sentences; `batch.index` counts in them."""
        return self._dataset(split).texts.columns[1]

    def _dataset(self, split: str) -> PairDataset:
        dataset = self.split(split)
        assert isinstance(dataset, PairDataset)
        return dataset

    def artifacts(self) -> dict[str, Any]:
        """Tokenizer, languages and greatest length."""
        src_lang, tgt_lang = self.langs
        more = {"src_lang": src_lang, "tgt_lang": tgt_lang, "max_len": self.max_len}
        return super().artifacts() | more


def _without_empty(rows: Rows) -> Rows:
    """Training pairs with text on both sides: an empty one teaches to invent or to fall silent."""
    full = [bool(s.strip() and t.strip()) for s, t in zip(*rows.columns, strict=True)]
    kept = np.flatnonzero(full)
    if len(kept) == len(rows):
        return rows
    if len(kept) == 0:
        raise InputError(f"{rows.where(0)} and on: every training pair has an empty side.")
    log.warning(
        "train: %d of %d pairs have an empty side: dropped.", len(rows) - len(kept), len(rows)
    )
    return rows.select(kept)
