import bz2
import gzip
import lzma
import zipfile

import numpy as np
import pytest

from fourfold.core.errors import InputError
from fourfold.data.sources import Rows, read_aligned, read_bytes, read_lines, read_table, resolve

ODD = "first\u2028still first\nsecond\x85still second\r\nthird"


def put(path, text):
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


@pytest.mark.parametrize(
    ("name", "pack"),
    [("a.en", bytes), ("a.gz", gzip.compress), ("a.xz", lzma.compress), ("a.bz2", bz2.compress)],
)
def test_lines_end_with_newlines_only(tmp_path, name, pack):
    file = put(tmp_path / name, pack(ODD.encode()))
    assert read_lines(file) == ["first\u2028still first", "second\x85still second", "third"]


def test_last_newline_byte_order_mark_and_empty_lines(tmp_path):
    assert read_lines(put(tmp_path / "a", "\ufeffone\n\nthree\n")) == ["one", "", "three"]


def test_member_of_an_archive(tmp_path):
    with zipfile.ZipFile(tmp_path / "both.zip", "w") as archive:
        archive.writestr("sub/deu.txt", "Hi.\tHallo!\nRun!\tLauf!\n")
    rows = read_table(f"{tmp_path}/both.zip/sub/deu.txt", ["1", "0"])
    assert rows.columns == [["Hallo!", "Lauf!"], ["Hi.", "Run!"]]
    with pytest.raises(InputError, match=r"both.zip/nothing cannot be read"):
        read_bytes(f"{tmp_path}/both.zip/nothing")


def test_relative_names_are_looked_up_under_fourfold_data(tmp_path, monkeypatch):
    put(tmp_path / "here.txt", "x")
    monkeypatch.setenv("FOURFOLD_DATA", str(tmp_path))
    assert resolve("here.txt") == tmp_path / "here.txt"
    with pytest.raises(InputError, match=r"no file gone.txt \(nor under FOURFOLD_DATA"):
        resolve("gone.txt")
    monkeypatch.delenv("FOURFOLD_DATA")
    with pytest.raises(InputError, match=r"no file here.txt\.$"):
        resolve("here.txt")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "a.txt is empty"),
        ("a.txt", b"\n \n", "a.txt is empty"),
        ("a.txt", b"fine\nfine\nb\xe4d\n", "a.txt, line 3: byte 0xe4 is not valid UTF-8"),
        ("a.gz", b"not packed", "a.gz cannot be read"),
        ("a.gz", gzip.compress(b"one two three", mtime=0)[:-9], "a.gz cannot be read"),
        ("a.xz", b"not packed", "a.xz cannot be read"),
    ],
)
def test_broken_files(tmp_path, name, content, message):
    with pytest.raises(InputError, match=message):
        read_lines(put(tmp_path / name, content))


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "a.tgz", "a.tar.zst"])
def test_an_archive_is_no_text(tmp_path, name):
    with pytest.raises(InputError, match=f"{name} is an archive of files: unpack it, or name a"):
        read_lines(put(tmp_path / name, gzip.compress(b"one\n")))


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(InputError, match="is a folder"):
        read_bytes(str(tmp_path))


def test_unequal_numbers_of_lines(tmp_path):
    en, de = put(tmp_path / "a.en", "one\ntwo\nthree\n"), put(tmp_path / "a.de", "eins\nzwei\n")
    with pytest.raises(InputError, match=r"a.en has 3 lines but .*a.de has 2"):
        read_aligned([en, de])


TABLES = {
    "a.tsv": 'id\ten\tde\n1\t"Hi\tHallo\n2\tRun\tLauf\n',
    "a.csv": 'id,en,de\n1,"""Hi",Hallo\n2,Run,Lauf\n',
    "a.jsonl": '{"en": "\\"Hi", "de": "Hallo"}\n{"en": "Run", "de": "Lauf"}\n',
}


@pytest.mark.parametrize("name", TABLES)
def test_columns_of_tables(tmp_path, name):
    rows = read_table(put(tmp_path / name, TABLES[name]), ["de", "en"])
    assert rows.columns == [["Hallo", "Lauf"], ['"Hi', "Run"]]
    line = {"a.tsv": "line 3", "a.csv": "row 3", "a.jsonl": "line 2"}[name]
    assert rows.where(1) == f"{tmp_path}/{name}, {line}"


@pytest.mark.parametrize("name", TABLES)
def test_blank_lines_are_no_rows(tmp_path, name):
    content = "\n\n".join(["", *TABLES[name].splitlines(), ""])
    rows = read_table(put(tmp_path / name, content), ["en"])
    assert rows.columns == [['"Hi', "Run"]]
    lines = {"a.tsv": "line 7", "a.csv": "row 7", "a.jsonl": "line 5"}[name]
    assert rows.where(1).endswith(lines)


def test_blank_lines_of_one_column(tmp_path):
    assert read_table(put(tmp_path / "a.tsv", "en\na\n\nb\n"), ["en"]).columns == [["a", "b"]]


def test_rows_with_other_columns_are_left_out_where_that_is_wanted(tmp_path, caplog):
    file = put(tmp_path / "a.tsv", "en\tde\na\tb\nc\td\te\nf\ng\th\n")
    rows = read_table(file, ["en"], drop_uneven=True)
    assert rows.columns == [["a", "g"]]
    assert rows.where(1).endswith("line 5")
    assert caplog.messages == [f"{file}: 2 rows with other columns than the header left out."]


def test_packed_tables_and_columns_inside_columns(tmp_path):
    line = b'{"translation": {"en": "Hi", "de": "Hallo"}}'
    file = put(tmp_path / "a.jsonl.gz", gzip.compress(line))
    assert read_table(file, ["translation.de"]).columns == [["Hallo"]]


def test_cells_of_csv_may_hold_newlines(tmp_path):
    rows = read_table(put(tmp_path / "a.csv", 'x,y\r\n"two\nlines",b\r\n'), ["x"])
    assert rows.columns == [["two\nlines"]]


@pytest.mark.parametrize(
    ("name", "content", "columns", "message"),
    [
        ("a.tsv", "id\ten\n1\tHi\n", ["de"], "a.tsv has no column 'de', only id, en"),
        ("a.tsv", "id\ten\n1\tHi\n2\n", ["en"], "a.tsv, line 3: 1 columns, but the header has 2"),
        ("a.tsv", "en\tx\na\tb\tc\n", ["en"], "a.tsv, line 2: 3 columns, but the header has 2"),
        ("a.csv", "en,x\na,b\nc,d,e\n", ["en"], "a.csv, row 3: 3 columns, but the header has 2"),
        ("a.txt", "Hi\tHallo\nRun\n", ["0", "1"], "a.txt, line 2: no column '1'"),
        ("a.tsv", "id\ten\n", ["en"], "has a header but no rows"),
        ("a.jsonl", '{"en": "Hi"}\n{"en"', ["en"], "a.jsonl, line 2: broken JSON"),
        ("a.jsonl", '{"en": "Hi"}\n{"de": "x"}', ["en"], "line 2: no column 'en', only de"),
        ("a.jsonl", '{"en": true}', ["en"], "line 1: column 'en' holds True, not a text"),
        ("a.jsonl", "[1]", ["en"], "line 1: no column 'en'"),
        ("a.jsonl", "[" * 99_999, ["en"], "a.jsonl, line 1: JSON that is nested too deeply"),
        ("a.jsonl", "9" * 5000, ["en"], "a.jsonl, line 1: a number with too many digits"),
        ("a.jsonl", '{"en": "\\ud83d"}', ["en"], "a.jsonl, line 1: half of a surrogate pair"),
        ("a.csv", '""', ["en"], "a.csv has no column 'en'"),
        ("a.csv", '""', ["0"], r"a.csv has no rows\."),
        ("a.csv", 'en\n"' + "x" * 200_000, ["en"], "a.csv, line 2: broken CSV .unexpected end"),
    ],
)
def test_broken_tables(tmp_path, name, content, columns, message):
    with pytest.raises(InputError, match=message):
        read_table(put(tmp_path / name, content), columns)


def test_a_long_document_is_a_field_as_any(tmp_path):
    long = "x " * 100_000
    file = put(tmp_path / "a.csv", f'id,text\n1,"{long}\n""end"""\n')
    assert read_table(file, ["text"]).columns == [[f'{long}\n"end"']]


def test_whole_pairs_of_surrogates_are_characters(tmp_path):
    file = put(tmp_path / "a.jsonl", '{"en": "\\ud83d\\ude00"}')
    assert read_table(file, ["en"]).columns == [["\U0001f600"]]


def test_joined_and_selected_rows_know_their_lines():
    rows = Rows.join([Rows.of([["a", "b"]], "x, line"), Rows.of([["c", "d", "e"]], "y, line", 2)])
    assert rows.columns == [["a", "b", "c", "d", "e"]]
    chosen = rows.select(np.array([4, 1]))
    assert chosen.columns == [["e", "b"]]
    assert [chosen.where(i) for i in range(2)] == ["y, line 4", "x, line 2"]
