"""Documents for language models, out of any source."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fourfold.core.errors import InputError
from fourfold.data.embedded_text import embedded_text
from fourfold.data.hub import HubConfig, from_hub, read_hub
from fourfold.data.labels import draw
from fourfold.data.pairs import check_fraction, hold_out
from fourfold.data.parts import check_embedded
from fourfold.data.sources import Rows, is_table, read_table, read_text
from fourfold.data.tokenizer import cut

log = logging.getLogger(__name__)

Unit = Literal["file", "line", "paragraph"]


@dataclass(frozen=True)
class TextSource:
    """Where the text of a language model comes from.

    Args:
        kind: embedded (Python's own documentation), files or hub.
        parts: for "train", "val" and "test" the files or the name of a hub's split; for the latter
            two also a fraction to hold out of training.
        column: column of tables (.jsonl, .json, .csv, .tsv) and of hub rows; a row is a document.
        documents: what a document is in plain text: the whole file, a line, or a stretch between
            blank lines.
        hub: the data set, for kind hub.
        train_rows: learn from so many documents only, drawn from all of training.
    """

    kind: str
    parts: dict[str, float | str | list[str] | None]
    column: str = "text"
    documents: Unit = "file"
    hub: HubConfig | None = None
    train_rows: int | None = None

    def read(self) -> dict[str, Rows]:
        """One column of documents for each split.

        Raises:
            InputError: as the readers of files and hub; or training data are not named, or fewer
                than `train_rows`; or parts are named of what is embedded.
        """
        raw = self._read()
        if self.train_rows is not None and "train" in raw:
            alike = np.zeros(len(raw["train"]), np.int64)
            raw["train"] = raw["train"].select(draw(alike, self.train_rows, 0))
        return raw

    def _read(self) -> dict[str, Rows]:
        if self.kind == "embedded":
            check_embedded(self.parts)
            return dict(embedded_text())
        if not any(isinstance(part, str | list) for part in self.parts.values()):
            raise InputError(f"source: {self.kind} needs `train` in the data section.")
        raw: dict[str, Rows] = {}
        # A single document loses its end piece by piece: the test part comes last in the text.
        for name in ("train", "test", "val"):
            part = self.parts[name]
            if isinstance(part, float) and "train" not in raw:
                raise InputError(f"{name}: {part:g} is a part of `train`, which is not given.")
            if isinstance(part, float):
                split = _cut_end if len(raw["train"]) == 1 else hold_out
                raw["train"], raw[name] = split(raw["train"], part, name)
            elif part is not None:
                raw[name] = _with_text(self._read_part(part), name)
        return raw

    def _read_part(self, part: str | list[str]) -> Rows:
        if self.kind == "files":
            names = [part] if isinstance(part, str) else part
            return Rows.join([self._read_file(name) for name in names])
        return read_hub(*from_hub(self.kind, self.hub, part), [self.column])

    def _read_file(self, name: str) -> Rows:
        if is_table(name):
            return read_table(name, [self.column])
        text = read_text(name).replace("\r\n", "\n")
        if self.documents == "file":
            return Rows.of([[text]], f"{name}, document")
        if self.documents == "line":
            lines = [line for line in text.split("\n") if line.strip()]
            return Rows.of([lines], f"{name}, non-empty line")
        if self.documents == "paragraph":
            parts = re.split(r"\n(?:[^\S\n]*\n)+", text)
            kept = [part.strip("\n") for part in parts if part.strip()]
            return Rows.of([kept], f"{name}, paragraph")
        raise InputError(f"documents must be file, line or paragraph, not {self.documents!r}.")


def _with_text(rows: Rows, name: str) -> Rows:
    """Without rows of a table that hold nothing: each would teach that a text ends at once."""
    kept = [row for row, text in enumerate(rows.columns[0]) if text.strip()]
    if not kept or len(kept) == len(rows):
        return rows  # that nothing is there is said elsewhere
    log.warning("%s: %d of %d rows hold no text: dropped.", name, len(rows) - len(kept), len(rows))
    return rows.select(np.array(kept))


def _cut_end(rows: Rows, fraction: float, name: str) -> tuple[Rows, Rows]:
    """The only document without its end, and the end."""
    check_fraction(name, fraction)
    text = rows.columns[0][0]
    border = len(text) - round(len(text) * fraction)
    if not 0 < border < len(text):
        raise InputError(f"{rows.where(0)} is too short to hold out {fraction:g} of it.")
    begin, end = (
        Rows([[piece]], rows.sources, rows.source, rows.number)
        for piece in (text[:border], text[border:])
    )
    return begin, end


def sizes(texts: Sequence[str]) -> tuple[list[int], list[int]]:
    """UTF-8 bytes and white-space words of each text."""
    words = [sum(len(piece.split()) for piece in cut(text)) for text in texts]
    return [len(text.encode()) for text in texts], words
