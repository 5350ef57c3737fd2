"""Text files: line endings, compression, archives, lookup under FOURFOLD_DATA, and JSON."""

import bz2
import gzip
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fourfold.errors import InputError
from fourfold.text_files import parse_json, read_bytes, read_lines, resolve


def write(path: Path, content: str | bytes) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


@pytest.mark.parametrize(
    ("name", "compress"),
    [("a.en", bytes), ("a.gz", gzip.compress), ("a.xz", lzma.compress), ("a.bz2", bz2.compress)],
)
def test_only_newlines_end_lines(
    tmp_path: Path, name: str, compress: Callable[[bytes], bytes]
) -> None:
    text = "first\u2028still first\nsecond\x85still second\r\nthird"
    file = write(tmp_path / name, compress(text.encode()))
    assert read_lines(file) == ["first\u2028still first", "second\x85still second", "third"]


def test_byte_order_mark_and_last_newline_are_stripped(tmp_path: Path) -> None:
    assert read_lines(write(tmp_path / "a", "\ufeffone\n\nthree\n")) == ["one", "", "three"]


def test_member_of_zip_archive(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "both.zip", "w") as archive:
        archive.writestr("sub/deu.txt", "Hi.\nRun!\n")
    assert read_lines(f"{tmp_path}/both.zip/sub/deu.txt") == ["Hi.", "Run!"]
    with pytest.raises(InputError, match=r"both.zip/missing: the file cannot be read"):
        read_bytes(f"{tmp_path}/both.zip/missing")


def test_relative_paths_are_found_under_fourfold_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "here.txt", "x")
    monkeypatch.setenv("FOURFOLD_DATA", str(tmp_path))
    assert resolve("here.txt") == tmp_path / "here.txt"
    with pytest.raises(InputError, match=r"gone.txt: .*no such file \(nor under FOURFOLD_DATA"):
        resolve("gone.txt")
    monkeypatch.delenv("FOURFOLD_DATA")
    with pytest.raises(InputError, match=r"here.txt: there is no such file$"):
        resolve("here.txt")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "a.txt: the file is empty"),
        ("a.txt", b"\n \n", "a.txt: the file is empty"),
        ("a.txt", b"fine\nfine\nb\xe4d\n", "a.txt:3: byte 0xe4 is not valid UTF-8"),
        ("a.gz", b"not compressed", "a.gz: the file cannot be read"),
        ("a.gz", gzip.compress(b"one two three", mtime=0)[:-9], "a.gz: the file cannot be read"),
        ("a.xz", b"not compressed", "a.xz: the file cannot be read"),
    ],
)
def test_invalid_files_are_rejected(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        read_lines(write(tmp_path / name, content))


@pytest.mark.parametrize("name", ["a.zip", "a.tar", "a.tar.gz", "a.tgz", "a.tar.zst"])
def test_archives_are_rejected_as_text(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match=f"{name}: .*archive of files: unpack it"):
        read_lines(write(tmp_path / name, gzip.compress(b"one\n")))


def test_folder_is_rejected_as_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="folder"):
        read_bytes(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ('{"a":\n1,', None, r"a\.json:2: invalid JSON"),
        ('{"a"', 7, r"a\.json:7: invalid JSON"),
        ("[" * 99_999, 1, r"a\.json:1: .*nested too deeply"),
        ("9" * 5000, 1, r"a\.json:1: invalid JSON .*digits"),
        ('"\\ud83d"', 1, r"a\.json:1: .*half of a surrogate pair"),
    ],
)
def test_invalid_json_is_rejected_with_its_line(text: str, line: int | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_json(text, "a.json", line)


def test_encrypted_member_of_an_archive_is_rejected(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a", "text")
    data = bytearray((tmp_path / "a.zip").read_bytes())
    for at in (6, data.index(b"PK\x01\x02") + 8):  # flags of the member and of the directory
        data[at] |= 1
    write(tmp_path / "a.zip", bytes(data))
    with pytest.raises(InputError, match=r"the file cannot be read: .*encrypted"):
        read_bytes(f"{tmp_path}/a.zip/a")
