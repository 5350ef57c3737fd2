"""TextTable and its readers: columns, header, blank lines, locations, invalid tables."""

import csv
import gzip
import io
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from fourfold.data.readers.text_table import TextTable, is_quoted, read_aligned_lines, read_table
from fourfold.errors import InputError

TABLES = {
    "a.tsv": 'id\ten\tde\n1\t"Hi\tHallo\n2\tRun\tLauf\n',
    "a.csv": 'id,en,de\n1,"""Hi",Hallo\n2,Run,Lauf\n',
    "a.jsonl": '{"en": "\\"Hi", "de": "Hallo"}\n{"en": "Run", "de": "Lauf"}\n',
}


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def test_aligned_files_with_different_lengths_are_rejected(tmp_path: Path) -> None:
    en = write(tmp_path / "a.en", "one\ntwo\nthree\n")
    de = write(tmp_path / "a.de", "eins\nzwei\n")
    with pytest.raises(InputError, match=r"a.de: .* 2 lines, but .*a.en has 3"):
        read_aligned_lines([en, de])


@pytest.mark.parametrize("name", TABLES)
def test_columns_are_read_by_name(tmp_path: Path, name: str) -> None:
    table = read_table(write(tmp_path / name, TABLES[name]), ["de", "en"])
    assert table.columns == [["Hallo", "Lauf"], ['"Hi', "Run"]]
    number = {"a.tsv": ":3", "a.csv": ", row 3", "a.jsonl": ":2"}[name]
    assert table.location(1) == f"{tmp_path}/{name}{number}"


@pytest.mark.parametrize("name", TABLES)
def test_blank_lines_are_skipped_but_counted(tmp_path: Path, name: str) -> None:
    content = "\n\n".join(["", *TABLES[name].splitlines(), ""])
    table = read_table(write(tmp_path / name, content), ["en"])
    assert table.columns == [['"Hi', "Run"]]
    number = {"a.tsv": ":7", "a.csv": ", row 7", "a.jsonl": ":5"}[name]
    assert table.location(1).endswith(number)


def test_blank_lines_are_skipped_in_a_single_column(tmp_path: Path) -> None:
    assert read_table(write(tmp_path / "a.tsv", "en\na\n\nb\n"), ["en"]).columns == [["a", "b"]]


def test_uneven_rows_are_dropped_on_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write(tmp_path / "a.tsv", "en\tde\na\tb\nc\td\te\nf\ng\th\n")
    table = read_table(file, ["en"], drop_uneven=True)
    assert table.columns == [["a", "g"]]
    assert table.location(1).endswith(":5")
    assert "dropped 2 rows" in caplog.messages[0]


def test_nested_columns_of_a_compressed_table(tmp_path: Path) -> None:
    line = b'{"translation": {"en": "Hi", "de": "Hallo"}}'
    file = write(tmp_path / "a.jsonl.gz", gzip.compress(line))
    assert read_table(file, ["translation.de"]).columns == [["Hallo"]]


def test_quoted_csv_cells_may_contain_newlines(tmp_path: Path) -> None:
    table = read_table(write(tmp_path / "a.csv", 'x,y\r\n"two\nlines",b\r\n'), ["x"])
    assert table.columns == [["two\nlines"]]


@pytest.mark.parametrize(
    ("name", "content", "columns", "message"),
    [
        ("a.tsv", "id\ten\n1\tHi\n", ["de"], "a.tsv: .*no column 'de', only id, en"),
        ("a.tsv", "id\ten\n1\tHi\n2\n", ["en"], "a.tsv:3: .*1 columns instead of 2"),
        ("a.tsv", "en\tx\na\tb\tc\n", ["en"], "a.tsv:2: .*3 columns instead of 2"),
        ("a.csv", "en,x\na,b\nc,d,e\n", ["en"], "a.csv, row 3: .*3 columns instead of 2"),
        ("a.txt", "Hi\tHallo\nRun\n", ["0", "1"], "a.txt:2: .*1 columns instead of 2"),
        ("a.tsv", "id\ten\n", ["en"], "the table has no rows"),
        ("a.jsonl", '{"en": "Hi"}\n{"en"', ["en"], "a.jsonl:2: invalid JSON"),
        ("a.jsonl", '{"en": "Hi"}\n{"de": "x"}', ["en"], ":2: .*no column 'en', only de"),
        ("a.jsonl", '{"en": true}', ["en"], ":1: column 'en' must be a text, got True"),
        ("a.jsonl", "[1]", ["en"], ":1: .*no column 'en'"),
        ("a.csv", '""', ["en"], "a.csv: .*no column 'en'"),
        ("a.csv", '""', ["0"], r"a.csv: the table has no rows$"),
        ("a.csv", 'en\n"' + "x" * 200_000, ["en"], "a.csv:2: invalid CSV .unexpected end"),
    ],
)
def test_invalid_tables_are_rejected(
    tmp_path: Path, name: str, content: str, columns: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read_table(write(tmp_path / name, content), columns)


def test_csv_fields_may_exceed_the_default_limit(tmp_path: Path) -> None:
    text = "x " * 100_000
    file = write(tmp_path / "a.csv", f'id,text\n1,"{text}\n""end"""\n')
    assert read_table(file, ["text"]).columns == [[f'{text}\n"end"']]


def test_escaped_surrogate_pairs_become_one_character(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", '{"en": "\\ud83d\\ude00"}')
    assert read_table(file, ["en"]).columns == [["\U0001f600"]]


def test_concatenated_and_selected_rows_keep_their_locations() -> None:
    table = TextTable.concat(
        [
            TextTable.from_columns([["a", "b"]], "x:"),
            TextTable.from_columns([["c", "d", "e"]], "y:", 2),
        ]
    )
    assert table.columns == [["a", "b", "c", "d", "e"]]
    chosen = table.select(np.array([4, 1]))
    assert chosen.columns == [["e", "b"]]
    assert [chosen.location(i) for i in range(2)] == ["y:4", "x:2"]


CELL = st.text(st.sampled_from('ab "\t\n,;'), max_size=6).map(str.strip)


@given(
    rows=st.lists(st.tuples(CELL, CELL.filter(bool)), min_size=1, max_size=6),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
def test_a_quoted_tsv_is_read_as_it_was_written(rows: list[tuple[str, str]], quoting: int) -> None:
    out = io.StringIO()
    csv.writer(out, "excel-tab", quoting=quoting, lineterminator="\n").writerows(
        [("a", "b"), *rows]
    )  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "x.tsv")
        file.write_text(out.getvalue(), encoding="utf-8")
        table = read_table(str(file), ["a", "b"])
    assert list(zip(*table.columns, strict=True)) == rows


@pytest.mark.parametrize("line", ['"a" b\tc', 'a "b"\tc', '"a\tb', 'x\t"', '"a" "b"\tc'])
def test_other_quotes_are_part_of_the_text(line: str, tmp_path: Path) -> None:
    file = tmp_path / "x.tsv"
    file.write_text(f'a\tb\n"q"\tr\n{line}\n', encoding="utf-8")
    table = read_table(str(file), ["a", "b"])
    assert list(zip(*table.columns, strict=True)) == [('"q"', "r"), tuple(line.split("\t"))]


def test_quotes_of_glue_are_part_of_the_text(data_dir: Path) -> None:
    files = sorted((data_dir / "glue").rglob("*.tsv.gz"))
    assert files
    assert not [file for file in files if is_quoted(str(file))]
