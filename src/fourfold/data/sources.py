r"""Text from local files: plain or compressed, one sentence a line or a table of columns.

Lines end with "\n" only: real corpora hold U+0085 and U+2028 inside sentences, where
`str.splitlines` would cut and shift every later line of one language against the other.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import logging
import lzma
import os
import re
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fourfold.core.errors import InputError
from fourfold.data.json_text import parse_json

log = logging.getLogger(__name__)

_OPENERS: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
_ARCHIVE = re.compile(r"\.(zip|7z|rar|tar(\.\w+)?|t(gz|xz|bz2?))$")
_BROKEN = (EOFError, OSError, lzma.LZMAError, zlib.error, zipfile.BadZipFile, KeyError)


@dataclass(frozen=True)
class Rows:
    """Columns of text, and where each row was read.

    Args:
        columns: equally long lists of texts.
        sources: like "train.en, line".
        source: (rows,) which of them a row comes from.
        number: (rows,) its number there.
    """

    columns: list[list[str]]
    sources: list[str]
    source: np.ndarray
    number: np.ndarray

    @classmethod
    def of(cls, columns: list[list[str]], source: str, number: int | Sequence[int] = 1) -> Rows:
        """All rows of one source; `number` is that of the first one, or of each."""
        n_rows = len(columns[0])
        if isinstance(number, int):
            number = range(number, number + n_rows)
        return cls(columns, [source], np.zeros(n_rows, np.int64), np.array(number, np.int64))

    def __len__(self) -> int:
        return len(self.columns[0])

    def where(self, row: int) -> str:
        """Like "train.en, line 7", for messages."""
        return f"{self.sources[self.source[row]]} {self.number[row]}"

    def select(self, rows: np.ndarray) -> Rows:
        """The chosen rows; each still knows where it comes from."""
        columns = [[column[row] for row in rows] for column in self.columns]
        return Rows(columns, self.sources, self.source[rows], self.number[rows])

    @staticmethod
    def join(parts: Sequence[Rows]) -> Rows:
        """The rows of several sources, one after the other."""
        columns = [
            [text for column in same for text in column]
            for same in zip(*(part.columns for part in parts), strict=True)
        ]
        begins = np.cumsum([0, *(len(part.sources) for part in parts)])
        return Rows(
            columns,
            [source for part in parts for source in part.sources],
            np.concatenate([p.source + begin for p, begin in zip(parts, begins[:-1], strict=True)]),
            np.concatenate([part.number for part in parts]),
        )


def resolve(path: str) -> Path:
    """The file or archive behind `path`; a relative one may also lie under $FOURFOLD_DATA.

    Raises:
        InputError: there is no such file.
    """
    folders = [Path()]
    if root := os.environ.get("FOURFOLD_DATA"):
        folders.append(Path(root))
    for folder in folders:
        candidate = folder / Path(path).expanduser()
        if candidate.exists():
            return candidate
    elsewhere = f" (nor under FOURFOLD_DATA={root})" if root else ""
    raise InputError(f"There is no file {path}{elsewhere}.")


def read_bytes(path: str) -> bytes:
    """The content of a file, unpacked by its suffix; `archive.zip/member` reads from an archive.

    Raises:
        InputError: the file is missing, a folder, an archive of files, or broken.
    """
    archive, is_member, member = path.partition(".zip/")
    file = resolve(archive + ".zip" if is_member else path)
    if file.is_dir():
        raise InputError(f"{path} is a folder, not a file.")
    if not is_member and _ARCHIVE.search(file.name):
        raise InputError(
            f"{path} is an archive of files: unpack it, or name a file in it as archive.zip/member."
        )
    try:
        if is_member:
            with zipfile.ZipFile(file) as opened:
                return opened.read(member)
        with _OPENERS.get(file.suffix, open)(file, "rb") as stream:
            return stream.read()
    except _BROKEN as error:
        raise InputError(f"{path} cannot be read: {error}.") from error


def read_text(path: str) -> str:
    """The content of a UTF-8 file.

    Raises:
        InputError: as `read_bytes`; or the file is empty, or not UTF-8 (names the line).
    """
    data = read_bytes(path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}, line {line}: byte 0x{data[error.start]:02x} is not valid UTF-8."
        ) from error
    if not text.strip():
        raise InputError(f"{path} is empty.")
    return text


def read_lines(path: str) -> list[str]:
    """The lines of a UTF-8 file, without their ends.

    Raises:
        InputError: as `read_text`.
    """
    lines = read_text(path).split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def read_aligned(paths: Sequence[str]) -> Rows:
    """Files whose line i belongs together.

    Raises:
        InputError: as `read_lines`, or the files have different numbers of lines.
    """
    columns = [read_lines(path) for path in paths]
    for path, lines in zip(paths[1:], columns[1:], strict=True):
        if len(lines) != len(columns[0]):
            raise InputError(
                f"{paths[0]} has {len(columns[0])} lines but {path} has {len(lines)}:"
                " line i of each must belong together."
            )
    return Rows.of(columns, " + ".join(paths) + ", line")


def is_table(path: str) -> bool:
    """Whether the name says that the file has columns."""
    return not {".tsv", ".csv", ".jsonl", ".json"}.isdisjoint(Path(path).suffixes)


def read_table(path: str, columns: Sequence[str], *, drop_uneven: bool = False) -> Rows:
    """Columns of a JSON-lines file (.jsonl, .json), a CSV file (.csv), else of a tab-separated one.

    Columns are named after the first line. If all names are numbers (from 0) there is no such line.
    Blank lines are no rows.

    Args:
        path: plain or compressed; a relative one may also lie under $FOURFOLD_DATA.
        columns: their names or numbers.
        drop_uneven: leave out lines with more or fewer fields than the first line, and say so.

    Raises:
        InputError: as `read_text`; or a column is missing, or a line is broken (names the line).
    """
    suffixes = Path(path).suffixes
    if ".jsonl" in suffixes or ".json" in suffixes:
        return _read_json_lines(path, columns)
    if ".csv" in suffixes:
        records: Iterator[list[str]] = _csv_rows(path)
        unit = "row"
    else:
        records = (line.split("\t") for line in read_lines(path))
        unit = "line"
    filled = ((i, record) for i, record in enumerate(records, start=1) if record not in ([], [""]))
    header: list[str] | None = None
    if not all(column.isdecimal() for column in columns):
        header = next(filled, (0, []))[1]
        if missing := [column for column in columns if column not in header]:
            raise InputError(f"{path} has no column {missing[0]!r}, only {', '.join(header)}.")
    places = [header.index(c) if header else int(c) for c in columns]
    found: list[list[str]] = [[] for _ in columns]
    numbers, dropped = [], 0
    for number, record in filled:
        if drop_uneven and header and len(record) != len(header):
            dropped += 1
            continue
        _check_fields(record, header, places, f"{path}, {unit} {number}")
        numbers.append(number)
        for place, texts in zip(places, found, strict=True):
            texts.append(record[place])
    if not numbers:
        raise InputError(f"{path} has {'a header but ' * bool(header)}no rows.")
    if dropped:
        log.warning("%s: %d rows with other columns than the header left out.", path, dropped)
    return Rows.of(found, f"{path}, {unit}", numbers)


def _check_fields(
    record: list[str], header: list[str] | None, places: list[int], where: str
) -> None:
    """Another number of fields than in the header would shift columns in silence."""
    if header and len(record) != len(header):
        raise InputError(f"{where}: {len(record)} columns, but the header has {len(header)}.")
    if max(places) >= len(record):
        raise InputError(
            f"{where}: no column {str(max(places))!r}, there are only {len(record)} columns."
        )


def _csv_rows(path: str) -> Iterator[list[str]]:
    csv.field_size_limit(2**31 - 1)  # for all of the process: by default 131,072 characters
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    try:
        yield from reader
    except csv.Error as error:  # such as a quote that is never closed, and a file behind it
        raise InputError(f"{path}, line {reader.line_num}: broken CSV ({error}).") from error


def read_json_lines(path: str) -> Iterator[tuple[str, int, Any]]:
    """Where each record of a JSON-lines file stands, the number of its line, and the record.

    Raises:
        InputError: as `read_text`; or a line is broken.
    """
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            where = f"{path}, line {number}"
            yield where, number, parse_json(line, where)


def _read_json_lines(path: str, columns: Sequence[str]) -> Rows:
    found: list[list[str]] = [[] for _ in columns]
    numbers = []
    for where, number, record in read_json_lines(path):
        numbers.append(number)
        for column, texts in zip(columns, found, strict=True):
            texts.append(pick(record, column, where))
    return Rows.of(found, f"{path}, line", numbers)


def pick(record: object, column: str, where: str) -> str:
    """The text in a column of a record; a dot goes one level down, as in "translation.de".

    A number, such as that of a class, is given as it would be written.

    Raises:
        InputError: there is no such column, or neither text nor number in it.
    """
    value = record
    for name in column.split("."):
        if not isinstance(value, dict) or name not in value:
            names = ", ".join(map(str, value)) if isinstance(value, dict) else repr(value)
            raise InputError(f"{where}: no column {column!r}, only {names}.")
        value = value[name]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise InputError(f"{where}: column {column!r} holds {value!r}, not a text.")
    return value
