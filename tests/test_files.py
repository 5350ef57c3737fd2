"""A file that is written is there completely or as it was before."""

from pathlib import Path

import pytest

from fourfold.files import whole, write_whole


def test_a_file_gets_its_name_when_it_is_complete(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    write_whole(file, "old")
    with whole(file) as part:
        part.write_text("new")
        assert file.read_text() == "old"
    assert file.read_text() == "new"
    assert list(tmp_path.iterdir()) == [file]


def test_what_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    write_whole(file, "old")

    def write() -> None:
        with whole(file) as part:
            part.write_text("half")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        write()
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_what_a_killed_process_left_is_written_over(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    (tmp_path / "a.txt.part").write_text("half of it")
    write_whole(file, "é")
    assert file.read_bytes() == "é".encode()
    assert list(tmp_path.iterdir()) == [file]
