"""Tables of texts, read from TSV, CSV, JSON lines or parallel text, with the location of rows."""

import csv
import io
import logging
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from fourfold.errors import InputError
from fourfold.text_files import iterate_text, parse_json, read_lines, read_text

log = logging.getLogger(__name__)
_FIELD = r'("([^"]|"")*"|[^"\t]*)'
_QUOTED = re.compile(rf"{_FIELD}(\t{_FIELD})*\r?\n?")  # a record whose quotes enclose fields


@dataclass(frozen=True)
class TextTable:
    """Columns of text, with the location from which each row was read.

    Args:
        columns: List of columns. A column is the list of the texts of all rows.
        source: Object array (rows,) with the source of each row, a prefix such as "train.en:" to
            which `location` appends the number.
        number: Number of each row in its source, (rows,) int64, such as the line number from 1.

    Example:
        >>> table = TextTable.from_columns([["a", "b"]], "train.txt:")
        >>> table.location(1)
        'train.txt:2'
    """

    columns: list[list[str]]
    source: np.ndarray
    number: np.ndarray

    @classmethod
    def from_columns(
        cls, columns: list[list[str]], source: str, number: int | Sequence[int] | np.ndarray = 1
    ) -> "TextTable":
        """Return a table whose rows all come from one source.

        `number` is that of the first row, if the other rows follow consecutively, or of every row.
        """
        n_rows = len(columns[0])
        if isinstance(number, int):
            number = range(number, number + n_rows)
        return cls(columns, np.full(n_rows, source, object), np.array(number, np.int64))

    def __len__(self) -> int:
        return len(self.columns[0])

    def location(self, row: int) -> str:
        """Return the location of a row, such as "train.en:7", for error messages."""
        return f"{self.source[row]}{self.number[row]}"

    def select(self, rows: np.ndarray) -> "TextTable":
        """Return a table of the rows with the given indices; each row keeps its location."""
        columns = [[column[row] for row in rows] for column in self.columns]
        return TextTable(columns, self.source[rows], self.number[rows])

    @staticmethod
    def concat(tables: Sequence["TextTable"]) -> "TextTable":
        """Concatenate the rows of several tables with equal numbers of columns."""
        columns = [list(chain(*same)) for same in zip(*(t.columns for t in tables), strict=True)]
        source = np.concatenate([table.source for table in tables])
        return TextTable(columns, source, np.concatenate([table.number for table in tables]))


def drop_blank(table: TextTable) -> TextTable:
    """Return a table without the rows in which a text is blank, whose number is logged.

    A model that is trained with such rows would learn to generate empty texts.

    Raises:
        InputError: If no row is left.
    """
    kept = [i for i, row in enumerate(zip(*table.columns, strict=True)) if all(map(str.strip, row))]
    first = table.location(0)
    if not kept:
        raise InputError("all rows from here on have an empty text", file=first)
    n_dropped = len(table) - len(kept)
    if not n_dropped:
        return table
    log.warning("%s: dropped %d of %d rows with an empty text", first, n_dropped, len(table))
    return table.select(np.array(kept))


def read_aligned_lines(paths: Sequence[str]) -> TextTable:
    """Read files with parallel lines as a table: column i holds the lines of file i.

    Raises:
        InputError: If a file cannot be read, or if the files have different numbers of lines.
    """
    columns = [read_lines(path) for path in paths]
    for path, lines in zip(paths[1:], columns[1:], strict=True):
        if len(lines) != len(columns[0]):
            message = f"the file has {len(lines)} lines, but {paths[0]} has {len(columns[0])}"
            raise InputError(message, file=path)
    return TextTable.from_columns(columns, " + ".join(paths) + ":")


def is_table(path: str) -> bool:
    """Return True if a suffix of `path`, as in "train.tsv.gz", is .tsv, .csv, .jsonl or .json."""
    return not {".tsv", ".csv", ".jsonl", ".json"}.isdisjoint(Path(path).suffixes)


def read_table(path: str, columns: Sequence[str], *, drop_uneven: bool = False) -> TextTable:
    """Read columns of a table; the suffix of the file determines its format.

    The formats are JSON lines (.jsonl, .json), CSV (.csv), and TSV (any other suffix). Blank lines
    are skipped.

    Args:
        path: Plain or compressed file; a relative path may also lie under $FOURFOLD_DATA.
        columns: Columns to read. For a CSV or TSV file, these are names in the header, which is the
            first line. If the file has no header, they are indices from 0 as text, such as "3". For
            JSON lines, they are keys of each object.
        drop_uneven: Skip rows of a CSV or TSV file with more or fewer fields than its header, and
            log how many. If False, such a row raises InputError.

    Raises:
        InputError: If the file cannot be read or has no rows, if a column is missing, or if a line
            is invalid.
    """
    source = table_source(path)
    numbers, texts = zip(*iterate_table(path, columns, drop_uneven=drop_uneven), strict=True)
    return TextTable.from_columns([list(c) for c in zip(*texts, strict=True)], source, numbers)


def table_source(path: str) -> str:
    """Return the prefix of the locations of the rows of a table file, such as "train.tsv:"."""
    return f"{path}, row " if ".csv" in Path(path).suffixes else f"{path}:"


def iterate_table(
    path: str, columns: Sequence[str], *, drop_uneven: bool = False
) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and the texts of each row of a table, which `read_table` describes.

    A CSV file is read completely; other files are read line by line.
    """
    suffixes = Path(path).suffixes
    rows: Iterator[tuple[int, list[str]]]
    if ".jsonl" in suffixes or ".json" in suffixes:
        rows = (
            (number, [get_column(record, name, f"{path}:{number}") for name in columns])
            for number, record in read_json_lines(path)
        )
    else:
        lines = iterate_text(path, lines=True)
        records: Iterator[list[str]]
        if ".csv" in suffixes:
            records = read_csv(path)
        elif is_quoted(path):
            records = csv.reader(lines, "excel-tab", strict=True)
        else:
            records = (line.removesuffix("\n").removesuffix("\r").split("\t") for line in lines)
        rows = _select_columns(records, columns, path, table_source(path), drop_uneven)
    is_empty = True
    for row in rows:
        is_empty = False
        yield row
    if is_empty:
        raise InputError("the table has no rows", file=path)


def _select_columns(
    records: Iterator[list[str]], columns: Sequence[str], path: str, source: str, drop_uneven: bool
) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number, from 1, and the selected fields of each data row."""
    filled = ((i, record) for i, record in enumerate(records, start=1) if record not in ([], [""]))
    header: list[str] = []
    if not all(column.isdecimal() for column in columns):
        header = next(filled, (0, []))[1]
        if missing := [column for column in columns if column not in header]:
            message = f"there is no column {missing[0]!r}, only {', '.join(header)}"
            raise InputError(message, file=path)
    indices = [header.index(column) if header else int(column) for column in columns]
    n_fields = len(header) or max(indices) + 1
    n_dropped = 0
    for number, record in filled:
        if len(record) == n_fields or (len(record) > n_fields and not header):
            yield number, [record[index] for index in indices]
        elif drop_uneven:
            n_dropped += 1
        else:
            message = f"the row has {len(record)} columns instead of {n_fields}"
            raise InputError(message, file=f"{source}{number}")
    if n_dropped:
        log.warning("%s: dropped %d rows with other columns than the header", path, n_dropped)


def is_quoted(path: str) -> bool:
    """Return True for a TSV file with quoted fields, as pandas and Python's csv write them.

    Each field with a quote then begins and ends with one, and quotes inside are doubled. In other
    files, such as those of GLUE, quotes are part of the text.
    """
    used: list[str] = []  # lines of the current record
    has_quotes = False
    lines = (used.append(line) or line for line in iterate_text(path, lines=True))  # type: ignore[func-returns-value]
    try:
        for _ in csv.reader(lines, "excel-tab", strict=True):
            record = "".join(used)
            used.clear()
            has_quotes = has_quotes or '"' in record
            if '"' in record and not _QUOTED.fullmatch(record):
                return False
    except csv.Error:
        return False
    return has_quotes


def read_csv(path: str) -> Iterator[list[str]]:
    """Yield the fields of each row of a CSV file.

    Raises:
        InputError: If the file cannot be read, or if a quote is not closed.
    """
    text = read_text(path)
    # The default limit of the csv module, which holds for the whole process, is 131,072 characters.
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        yield from reader
    except csv.Error as error:  # such as a quote that is never closed
        raise InputError(f"invalid CSV ({error})", file=path, line=reader.line_num) from error


def read_json_lines(path: str) -> Iterator[tuple[int, Any]]:
    """Yield the line number, from 1, and the parsed value of each line that is not blank.

    Raises:
        InputError: If the file cannot be read, or if a line is not valid JSON.
    """
    for number, line in enumerate(iterate_text(path, lines=True), start=1):
        if line.strip():
            yield number, parse_json(line, path, number)


def is_text(value: object) -> bool:
    """Return True for a text or a finite number, but not for a missing value (None or NaN)."""
    return math.isfinite(value) if isinstance(value, float) else isinstance(value, str | int)


def get_column(record: object, column: str, location: str) -> str:
    """Return the text or finite number in a column of a record as text.

    The column "translation.de" is the column "de" of the record in the column "translation".

    Raises:
        InputError: If there is no such column, or if it holds neither a text nor a finite number.

    Example:
        >>> get_column({"translation": {"de": "Hallo"}}, "translation.de", "data.jsonl:1")
        'Hallo'
    """
    value = record
    for name in column.split("."):
        if not isinstance(value, dict) or name not in value:
            names = ", ".join(map(str, value)) if isinstance(value, dict) else repr(value)
            raise InputError(f"there is no column {column!r}, only {names}", file=location)
        value = value[name]
    if isinstance(value, bool) or not is_text(value):
        raise InputError(f"column {column!r} must be a text, got {value!r}", file=location)
    return str(value)
