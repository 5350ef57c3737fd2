"""Cache of arrays: atomic writing, damaged files, files of others, several processes."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fourfold.data.loading.array_cache import cached_arrays, default_cache_dir
from fourfold.errors import DiskError, InputError

PARTS = [
    {"ids": np.arange(9, dtype=np.uint16), "ends": np.array([9])},
    {"ids": np.arange(4, dtype=np.uint16), "ends": np.zeros(0, np.int64)},
]


def fail():
    raise AssertionError("must be found in the cache")


@pytest.fixture
def folder(tmp_path):
    found = cached_arrays(tmp_path / "new" / "cache", "key", lambda: PARTS)
    assert found["ids"].tolist() == [*range(9), *range(4)]
    assert found["ends"].tolist() == [9]
    assert found["ids"].dtype == np.uint16
    return tmp_path / "new" / "cache"


def test_arrays_are_found_again(folder):
    again = cached_arrays(folder, "key", fail)
    memory = cached_arrays(None, "key", lambda: PARTS)
    for name, array in memory.items():
        assert again[name].tolist() == array.tolist()
        assert again[name].dtype == array.dtype
    with pytest.raises(ValueError, match="read-only"):
        again["ids"][0] = 1
    with pytest.raises(AssertionError):
        cached_arrays(folder, "other", fail)
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["key"]


@pytest.mark.parametrize("name", ["ids.bin", "ends.bin", "index.json"])
def test_every_damaged_byte_is_detected(folder, name):
    file = folder / "key" / name
    whole = file.read_bytes()
    for at in range(len(whole)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        produced = []
        cached_arrays(folder, "key", lambda produced=produced: produced.append(1) or PARTS)
        assert produced, (name, at)
        assert file.read_bytes() == whole


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data + b"\0", None])
def test_files_of_another_size_are_replaced_on_all_ranks(folder, damage, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")  # does not verify checksums
    file = folder / "key" / "ids.bin"
    whole = file.read_bytes()
    if damage is None:
        file.unlink()
    else:
        file.write_bytes(damage(whole))
    assert cached_arrays(folder, "key", lambda: PARTS)["ids"].tolist() == [*range(9), *range(4)]
    assert file.read_bytes() == whole


def test_files_of_others_are_refused(folder):
    (folder / "key" / "thesis.txt").write_text("x")
    (folder / "file").write_text("x")
    (folder / "link").symlink_to(folder / "key")
    for key in ("key", "file", "link"):
        with pytest.raises(InputError, match="these are not arrays of fourfold"):
            cached_arrays(folder, key, lambda: PARTS)
    assert (folder / "key" / "thesis.txt").read_text() == "x"


def test_failed_writer_leaves_nothing(tmp_path):
    def parts(error):
        yield PARTS[0]
        raise error

    with pytest.raises(DiskError, match=r"key cannot be written: No space left on device"):
        cached_arrays(tmp_path, "key", lambda: parts(OSError(errno.ENOSPC, "full")))
    with pytest.raises(InputError, match="wrong"):
        cached_arrays(tmp_path, "key", lambda: parts(InputError("wrong", option="x")))
    assert [path.name for path in tmp_path.iterdir()] == ["key.lock"]


def test_folder_that_cannot_be_written_is_an_input_error(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(InputError, match=r"must be a folder that can be written: Permission"):
        cached_arrays(tmp_path, "key", lambda: PARTS)


def test_a_file_in_place_of_the_folder_is_an_input_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"file: the cache must be a folder .*: File exists"):
        cached_arrays(tmp_path / "file", "key", lambda: PARTS)


def test_default_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert str(default_cache_dir()) == os.environ["FOURFOLD_CACHE"]
    monkeypatch.delenv("FOURFOLD_CACHE")
    assert default_cache_dir() == tmp_path / "fourfold"


WRITER = """
import sys, time
from pathlib import Path
import numpy as np
from fourfold.data.loading.array_cache import cached_arrays

def parts():
    print("writing", flush=True)
    for i in range(int(sys.argv[2])):
        yield {"a": np.full(1000, i)}
        time.sleep(0.001)

print(int(cached_arrays(Path(sys.argv[1]), "key", parts)["a"].sum()), flush=True)
"""


def start(folder, n_parts):
    command = [sys.executable, "-c", WRITER, str(folder), str(n_parts)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_killed_writer_leaves_nothing_complete_and_one_process_writes(tmp_path):
    for delay in (0.0, 0.02, 0.2):
        writer = start(tmp_path, 100_000)
        assert writer.stdout.readline() == "writing\n"
        time.sleep(delay)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        assert not (tmp_path / "key").exists()
    together = [start(tmp_path, 300) for _ in range(3)]
    outputs = [process.communicate()[0].split() for process in together]
    total = 1000 * sum(range(300))
    assert sorted(outputs) == [[str(total)], [str(total)], ["writing", str(total)]]
    assert set(json.loads((tmp_path / "key" / "index.json").read_text())["arrays"]) == {"a"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key", "key.lock"]
