"""Sharded checkpoints: one process writes and reads them; damage, strangers and full disks."""

import errno
import os
import pickle
import shutil
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from fourfold.checkpoints.files import DamagedFile, is_checkpoint, is_run, read_file
from fourfold.checkpoints.sharded import Save, read_tensors
from fourfold.errors import DiskError, InputError
from scripts.tools.kill_test import unequal
from tests.fixtures.failing_disk import FailingDisk

SHARD = "__0_0.distcp"


def content(step: int = 1) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    weights = {"model.a": torch.randn(5, 3, generator=generator), "model.none": torch.zeros(0, 3)}
    half = torch.randn(7, generator=generator).bfloat16()
    moments = {"step": torch.tensor(float(step)), "exp_avg": half}
    return {
        "state_dict": OrderedDict(weights),
        "optimizer_states": [{"state": {0: moments}, "param_groups": [{"betas": (0.9, 0.99)}]}],
        "callbacks": {"best": [torch.tensor(step), "x", None, {1, 2}]},
        "global_step": step,
    }


def save(path: Path, step: int = 1, asynchronous: bool = False) -> None:
    Save(content(step), path, None, lambda: None, asynchronous).wait()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save(tmp_path / "last.ckpt")
    return tmp_path / "last.ckpt"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_is_read_is_what_was_saved(asynchronous: bool, tmp_path: Path) -> None:
    done: list[bool] = []
    path = tmp_path / "deep" / "last.ckpt"
    given = content()
    saving = Save(given, path, None, lambda: done.append(is_checkpoint(path)), asynchronous)
    expected = content()
    given["state_dict"]["model.a"] += 1  # training goes on
    given["callbacks"]["best"][1] = "y"
    given["optimizer_states"][0]["param_groups"][0]["lr"] = 0.1
    saving.wait()
    assert done == [True]
    assert unequal(read_file(path), expected) == ""
    assert sorted(file.name for file in path.iterdir()) == [".metadata", SHARD, "index.pt"]
    assert [file.name for file in path.parent.iterdir()] == ["last.ckpt"]
    assert is_checkpoint(path)
    assert not is_run(path)


def test_tools_of_torch_read_the_directory(saved: Path, tmp_path: Path) -> None:
    dcp_to_torch_save(saved, tmp_path / "one.pt")
    found = torch.load(tmp_path / "one.pt")
    assert torch.equal(found["state_dict/model.a"], content()["state_dict"]["model.a"])
    # Nor does the pickle of torch name a folder of this machine.
    assert str(tmp_path).encode() not in b"".join(file.read_bytes() for file in saved.iterdir())


def test_a_new_checkpoint_replaces_a_directory_or_a_file(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    path.write_text("a checkpoint in one file")
    for leftover in ("last.ckpt.shards.part", "last.ckpt.old", "last.ckpt.old.removed"):
        (tmp_path / leftover).mkdir()
        (tmp_path / leftover / "__7_0.distcp").write_text("of a killed process")
    for step in (2, 3):
        save(path, step)
        assert unequal(read_file(path), content(step)) == ""
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]


def test_two_tensors_of_one_name_are_rejected(tmp_path: Path) -> None:
    twice = {"a": {"b": torch.ones(1)}, "a/b": torch.ones(1)}
    with pytest.raises(InputError, match="a/b must be the name of one tensor"):
        Save(twice, tmp_path / "last.ckpt", None, lambda: None, False)


def test_a_part_of_the_tensors_can_be_read_later(saved: Path) -> None:
    found = read_file(saved, meta=True)
    assert found["callbacks"]["best"][0] == 1
    stored = found["state_dict"]
    assert stored["model.a"].is_meta
    own = {"model.a": torch.zeros(5, 3), "model.none": torch.zeros(0, 3)}
    read_tensors(stored, own)
    assert torch.equal(own["model.a"], content()["state_dict"]["model.a"])
    with pytest.raises(InputError, match="do not match the model's config"):
        read_tensors(stored, {"model.a": torch.zeros(5, 3)})
    for shape in ((5, 2), (5, 4), (3, 5), (15,)):
        with pytest.raises((InputError, ValueError)):
            read_tensors(stored, {**own, "model.a": torch.zeros(shape)})


# Damage.


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 5] ^= 1
    file.write_bytes(data)


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "flip": flip,
    "cut": cut,
    "remove": Path.unlink,
    "empty": lambda file: file.write_bytes(b""),
}


@pytest.mark.parametrize("way", DAMAGES)
@pytest.mark.parametrize("name", [SHARD, "index.pt"])
@pytest.mark.parametrize("meta", [False, True])
def test_damage_is_found_and_named(way: str, name: str, meta: bool, saved: Path) -> None:
    DAMAGES[way](saved / name)
    with pytest.raises(DamagedFile) as caught:
        read_file(saved, meta=meta)
    assert str(saved) in str(caught.value)
    if name == SHARD:
        assert SHARD in caught.value.message


def test_every_damaged_byte_is_found(saved: Path) -> None:
    for name in (SHARD, "index.pt"):
        data = (saved / name).read_bytes()
        for at in range(0, len(data), 37):
            (saved / name).write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
            try:
                found = read_file(saved)
            except DamagedFile:
                continue
            assert unequal(found, content()) == "", (name, at)  # a byte without a meaning
        (saved / name).write_bytes(data)
    assert unequal(read_file(saved), content()) == ""


# Files of strangers.


class Code:
    """Object whose pickle runs a command when it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


def change_index(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    index = torch.load(path / "index.pt")
    change(index)
    torch.save(index, path / "index.pt")


def test_no_file_of_the_directory_runs_code(saved: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    (saved / ".metadata").write_bytes(pickle.dumps(Code(mark)))
    assert unequal(read_file(saved), content()) == ""
    change_index(saved, lambda index: index["content"].update(x=Code(mark)))
    with pytest.raises(DamagedFile, match="code"):
        read_file(saved)
    save(saved)
    torch.save(Code(mark), saved / SHARD)
    digest = subprocess.check_output(["sha256sum", saved / SHARD], text=True).split()[0]
    change_index(saved, lambda index: index["files"].update({SHARD: digest}))
    change_index(saved, lambda index: index["tensors"]["state_dict/model.a"][0].__setitem__(3, 0))
    size = (saved / SHARD).stat().st_size
    change_index(
        saved, lambda index: index["tensors"]["state_dict/model.a"][0].__setitem__(4, size)
    )
    with pytest.raises(DamagedFile):
        read_file(saved)
    assert not mark.exists()


def nested(index: dict[str, Any]) -> None:
    value: Any = []
    for _ in range(60):
        value = [value, value]
    index["content"]["epoch"] = value


def huge(index: dict[str, Any]) -> None:
    index["content"]["state_dict"]["model.a"] = torch.empty(1 << 20, 1 << 20, device="meta")


def other_folder(index: dict[str, Any]) -> None:
    for chunks in index["tensors"].values():
        chunks[0][2] = f"../last.ckpt/{SHARD}"


def other_folder_with_checksum(index: dict[str, Any]) -> None:
    other_folder(index)
    index["files"][f"../last.ckpt/{SHARD}"] = index["files"][SHARD]


def outside(index: dict[str, Any]) -> None:
    index["tensors"]["state_dict/model.a"][0][0] = [1, 0]


def missing_part(index: dict[str, Any]) -> None:
    index["tensors"]["state_dict/model.a"] = []


def no_tensor(index: dict[str, Any]) -> None:
    del index["tensors"]["state_dict/model.a"]


def wrong_type(index: dict[str, Any]) -> None:
    index["files"] = 3


def negative(index: dict[str, Any]) -> None:
    index["tensors"]["state_dict/model.a"][0][3] = -5


@pytest.mark.parametrize(
    "change",
    [
        nested,
        huge,
        other_folder,
        other_folder_with_checksum,
        outside,
        missing_part,
        no_tensor,
        wrong_type,
        negative,
    ],
)
def test_an_index_of_a_stranger_is_rejected(change: Any, saved: Path) -> None:
    change_index(saved, change)
    with pytest.raises(DamagedFile):
        read_file(saved)


# Disks and kills.


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_full_disk_keeps_the_earlier_checkpoint(
    asynchronous: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "last.ckpt"
    save(path)
    disk = FailingDisk(tmp_path, monkeypatch)
    save(path)
    n_writes = disk.count
    assert n_writes > 10
    saved = []
    for number in range(1, n_writes + 1):
        disk.fail_at(number, errno.ENOSPC, stays=False)
        with suppress(DiskError):
            save(path, 2, asynchronous=asynchronous)
            saved.append(number)
        disk.fail_at(0)
        names = sorted(file.name for file in tmp_path.iterdir() if file.name != "last.ckpt.old")
        # The last renames leave one of the two under its name, or the earlier one as NAME.old.
        newest = path if path.exists() else tmp_path / "last.ckpt.old"
        found = read_file(newest)
        assert unequal(found, content(found["global_step"])) == "", number
        assert names in ([], ["last.ckpt"]), (number, names)
        save(path)
    # The folder exists, and the last error is one of flushing the new name.
    assert set(saved) <= {1, n_writes}
    disk.fail_at(n_writes // 2)
    with pytest.raises(DiskError, match=r"/last\.ckpt cannot be written: No space"):
        save(path, 2, asynchronous=asynchronous)


SAVES = """
import sys
from pathlib import Path
from tests.checkpoints.test_sharded import save

print("ready", flush=True)
for step in range(1, 1000):
    save(Path(sys.argv[1]), step, asynchronous=step % 2 == 0)
"""


@pytest.mark.slow
def test_a_killed_process_leaves_a_complete_checkpoint(tmp_path: Path) -> None:
    for number in range(4):
        folder = tmp_path / str(number)
        command = [sys.executable, "-c", SAVES, str(folder / "last.ckpt")]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout
            process.stdout.readline()
            try:
                process.wait(0.5 + 0.137 * number)
            except subprocess.TimeoutExpired:
                process.kill()
        newest = next(x for x in (folder / "last.ckpt", folder / "last.ckpt.old") if x.exists())
        found = read_file(newest)
        assert unequal(found, content(found["global_step"])) == ""
        shutil.rmtree(folder)
