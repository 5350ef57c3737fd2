"""A file that is written is there completely or as it was before."""

import os
from pathlib import Path

import pytest

from fourfold import atomic_files
from fourfold.atomic_files import atomic_path, set_aside, write_atomically


def test_a_file_gets_its_name_when_it_is_complete(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    write_atomically(file, "old")
    with atomic_path(file) as part:
        part.write_text("new")
        assert file.read_text() == "old"
    assert file.read_text() == "new"
    assert list(tmp_path.iterdir()) == [file]


def test_what_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    write_atomically(file, "old")

    def write() -> None:
        with atomic_path(file) as part:
            part.write_text("half")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        write()
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_what_a_killed_process_left_is_written_over(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    (tmp_path / "a.txt.part").write_text("half of it")
    with atomic_path(file) as part:
        part.write_text("é", encoding="utf-8")
    assert file.read_bytes() == "é".encode()
    assert list(tmp_path.iterdir()) == [file]


def test_writers_of_the_same_text_do_not_take_each_others_away(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    with atomic_path(file, ".7") as other:  # a rank that is still at it
        other.write_text("a")
        write_atomically(file, "a")
        assert file.read_text() == "a"
    assert list(tmp_path.iterdir()) == [file]


def test_file_and_folder_are_flushed_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    replace = os.replace
    monkeypatch.setattr(atomic_files, "sync", lambda path: calls.append(path.name))
    monkeypatch.setattr(os, "replace", lambda *names: (calls.append("rename"), replace(*names)))
    write_atomically(tmp_path / "a.txt", "a")
    assert calls == [f"a.txt.{os.getpid()}.part", "rename", tmp_path.name]


def test_damaged_file_is_renamed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.txt"
    for name in ("a.txt.corrupted", "a.txt.corrupted_2"):
        file.write_text(name)
        set_aside(file, "it is junk", "starting anew")
        assert (tmp_path / name).read_text() == name
        message = f"{file}: it is junk; renamed to {name}; starting anew\n"
        assert capsys.readouterr().err == message
    set_aside(file, "it is junk")  # as if another process had renamed it
    assert not capsys.readouterr().err


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_temporary_file_is_always_a_new_file(kind: str, tmp_path: Path) -> None:
    target, part = tmp_path / "thesis.txt", tmp_path / "last.ckpt.part"
    target.write_text("chapter 1")
    part.symlink_to(target) if kind == "link" else os.mkfifo(part)
    with atomic_path(tmp_path / "last.ckpt") as file:
        file.write_text("weights")
    assert (tmp_path / "last.ckpt").read_text() == "weights"
    assert target.read_text() == "chapter 1"
