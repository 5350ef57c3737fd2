import errno
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fourfold.commands import run_directory
from fourfold.commands.run_directory import RunDirectory
from fourfold.errors import InputError


def run_with(folder: Path, *names: str) -> RunDirectory:
    run = RunDirectory(folder / "run")
    for name in names:
        run.checkpoints.mkdir(parents=True, exist_ok=True)
        torch.save({"name": name}, run.checkpoints / f"{name}.ckpt")
    return run


def test_directory_is_named_after_the_config() -> None:
    model = {"class_path": "fourfold.tasks.Translation"}
    files = ["configs/gpt2/small.yaml", "configs/trainer/gpu.yaml"]
    config = {"config": files, "model": model, "trainer": {"default_root_dir": None}}
    assert RunDirectory.from_config(config).path == Path("runs/gpt2/small")
    assert RunDirectory.from_config(config | {"run_dir": "x"}).path == Path("x")
    with_root = config | {"trainer": {"default_root_dir": "y"}}  # Lightning's name
    assert RunDirectory.from_config(with_root).path == Path("y")
    assert RunDirectory.from_config(with_root | {"run_dir": "x"}).path == Path("x")
    assert RunDirectory.from_config(config | {"config": None}).path == Path("runs/Translation")


def test_resume_option(tmp_path: Path) -> None:
    new, old = run_with(tmp_path / "new"), run_with(tmp_path / "old", "last")
    assert new.checkpoint_to_resume("auto", None) is None
    assert new.checkpoint_to_resume("never", None) is None
    with pytest.raises(InputError, match=r"--resume is must, but .*last\.ckpt does not exist"):
        new.checkpoint_to_resume("must", None)
    assert (
        old.checkpoint_to_resume("auto", None) == old.checkpoint_to_resume("must", None) == old.last
    )
    with pytest.raises(InputError, match="--run_dir must be a new directory with --resume never"):
        old.checkpoint_to_resume("never", None)


def test_named_checkpoint_needs_a_new_directory(tmp_path: Path) -> None:
    new, old = run_with(tmp_path / "new"), run_with(tmp_path / "old", "last", "best")
    assert new.checkpoint_to_resume("auto", str(old.last)) == old.last
    assert old.checkpoint_to_resume("auto", "last") == old.last
    with pytest.raises(InputError, match="without --ckpt_path"):
        old.checkpoint_to_resume("auto", "best")


def test_named_run_directory_means_its_newest_checkpoint(tmp_path: Path) -> None:
    new, old = run_with(tmp_path / "new"), run_with(tmp_path / "old", "last", "best")
    assert new.checkpoint_to_resume("auto", str(old.path)) == old.last
    assert new.find_checkpoint(str(old.path)) == old.checkpoints / "best.ckpt"
    with pytest.raises(
        InputError, match=f"{tmp_path}/checkpoints: there is no checkpoint to resume from"
    ):
        new.checkpoint_to_resume("auto", str(tmp_path))


def test_evaluation_prefers_best_then_average_then_last(tmp_path: Path) -> None:
    names = ["best", "average", "last"]
    for skipped in range(3):
        run = run_with(tmp_path / str(skipped), *names[skipped:])
        assert run.find_checkpoint(None).stem == names[skipped]
    with pytest.raises(InputError, match=r"--ckpt_path must be .*best\.ckpt does not exist"):
        run_with(tmp_path / "2", "last").find_checkpoint("best")
    with pytest.raises(InputError, match="checkpoint"):
        run_with(tmp_path / "none").find_checkpoint(None)
    with pytest.raises(
        InputError, match="must be best, average, last or an existing file, but bets does not exist"
    ):
        run_with(tmp_path / "2").find_checkpoint("bets")


def test_resume_skips_corrupted_checkpoints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_with(tmp_path, "last", "previous", "step=00000004", "step=00000010", "best")
    for corrupted, chosen in (
        ("last", "previous"),
        ("previous", "step=00000010"),
        ("step=00000010", "step=00000004"),
    ):
        file = run.checkpoints / f"{corrupted}.ckpt"
        file.write_bytes(file.read_bytes()[:-30])
        assert run.checkpoint_to_resume("must", None) == run.checkpoints / f"{chosen}.ckpt"
        assert f"resuming from {chosen}.ckpt" in capsys.readouterr().err
        assert not file.exists()  # otherwise it would become previous.ckpt
        assert (run.checkpoints / f"{corrupted}.ckpt.corrupted").exists()
    assert run.checkpoint_to_resume("auto", None) == run.checkpoints / "step=00000004.ckpt"
    (run.checkpoints / "step=00000004.ckpt").write_bytes(b"")
    with pytest.raises(InputError, match=r"not corrupted; .* \(corrupted: step=00000004\.ckpt\)"):
        run.checkpoint_to_resume("auto", None)


# Bits of the last entry in the archive's list of files, by the error of zipfile or torch.
FLIPS = {
    "NotImplementedError, version": (6, 0x40),
    "RuntimeError, encryption": (8, 0x01),
    "NotImplementedError, method": (10, 0x01),
    "directory": (38, 0x10),
    "UnicodeDecodeError, name": (46, 0x80),
}


@pytest.mark.parametrize("flip", FLIPS)
def test_damage_of_any_kind_leads_to_the_previous_checkpoint(
    flip: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_with(tmp_path, "last", "previous")
    data = bytearray(run.last.read_bytes())
    offset, bit = FLIPS[flip]
    data[data.rindex(b"PK\x01\x02") + offset] ^= bit
    run.last.write_bytes(data)
    assert run.checkpoint_to_resume("auto", None) == run.checkpoints / "previous.ckpt"
    error = capsys.readouterr().err
    assert error.startswith(f"{run.last}: the checkpoint is corrupted")
    assert error.endswith("renamed to last.ckpt.corrupted; resuming from previous.ckpt\n")
    assert error.count("\n") == 1


def test_damage_that_only_torch_notices(tmp_path: Path) -> None:
    run = run_with(tmp_path, "last", "previous")
    with zipfile.ZipFile(run.last) as old:
        entries = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(run.last, "w") as new:
        for name, content in entries.items():
            new.writestr(name, content[:-3] if name.endswith("data.pkl") else content)
    assert run.checkpoint_to_resume("auto", None) == run.checkpoints / "previous.ckpt"


def test_checkpoint_that_does_not_fit_into_memory_is_not_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_with(tmp_path, "last", "previous")

    def fail(*args: object, **options: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(InputError, match=r"last\.ckpt: .* the machine has too little memory"):
        run.checkpoint_to_resume("auto", None)
    assert run.last.is_file()


@pytest.mark.parametrize("content", [b"\x93\x00\xff" * 99, b"", b"model: [", b"- a", b"7"])
def test_damaged_config_is_renamed(content: bytes, tmp_path: Path) -> None:
    run = run_with(tmp_path, "last")
    run.config.write_bytes(content)
    run.set_aside_damaged()
    assert (run.path / "config.yaml.corrupted").read_bytes() == content
    run.config.write_text("model: 1")
    run.set_aside_damaged()
    assert run.recorded_config() == {"model": 1}


def test_one_flipped_bit_is_detected(tmp_path: Path) -> None:
    run = run_with(tmp_path, "last", "previous")
    torch.save({"w": torch.ones(1000)}, run.last)
    content = bytearray(run.last.read_bytes())
    content[content.index(b"\x00\x00\x80?" * 50) + 100] ^= 1
    run.last.write_bytes(bytes(content))
    assert run.checkpoint_to_resume("auto", None) == run.checkpoints / "previous.ckpt"


def test_cleanup_keeps_the_directory_of_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = RunDirectory(tmp_path / "r"), RunDirectory(tmp_path / "r")

    def taken(*arguments: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "taken")

    with first.lock():
        with monkeypatch.context() as patch:
            patch.setattr(run_directory.fcntl, "lockf", taken)
            with pytest.raises(InputError, match="another process trains"), second.lock():
                pass
            second.cleanup_if_empty()
        assert (tmp_path / "r/.lock").is_file()
    first.cleanup_if_empty()
    assert not (tmp_path / "r").exists()


def test_cleanup_never_removes_what_another_process_uses(tmp_path: Path) -> None:
    """Two kinds of processes: one fails and cleans up, the others train in the same directory."""
    script = """
import pathlib, sys
from fourfold.commands.run_directory import RunDirectory
from fourfold.errors import InputError
for number in range(400):
    run = RunDirectory(sys.argv[1])
    try:
        with run.lock():
            if sys.argv[2] == "train":
                file = run.path / f"{sys.argv[3]}.txt"
                file.write_text("used")
                (run.path / "again.txt").write_text("used")
                assert file.read_text() == "used", "removed"
    except InputError as error:
        assert "another process trains" in str(error)
    run.cleanup_if_empty()
"""
    arguments = [("fail", "a"), ("fail", "b"), ("train", "c"), ("train", "d")]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path / "new/r"), *words],
            stderr=subprocess.PIPE,
            text=True,
        )
        for words in arguments
    ]
    for process in processes:
        assert process.communicate(timeout=120)[1] == ""
        assert process.returncode == 0


@pytest.mark.parametrize("step", range(1, 6))
def test_lock_makes_a_directory_again_that_is_removed_at_any_step(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, steps = tmp_path / "new/r", []

    def replaced(original: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            steps.append(1)
            if len(steps) == step and path.parent.exists():
                path.parent.rename(tmp_path / "gone")
            return original(*arguments, **options)

        return call

    run = RunDirectory(path)
    with monkeypatch.context() as patch:
        for name in ("mkdir", "open"):
            patch.setattr(os, name, replaced(getattr(os, name)))
        with run.lock():
            assert (path / ".lock").is_file()
    assert (tmp_path / "gone").exists() == (step in {3, 4})


@pytest.mark.parametrize("linked", ["", "r"])
def test_directory_that_is_no_directory_is_an_error(linked: str, tmp_path: Path) -> None:
    (tmp_path / "new").symlink_to(tmp_path / "missing")
    with pytest.raises(OSError), RunDirectory(tmp_path / "new" / linked).lock():
        pass


@pytest.mark.parametrize("exists", [True, False])
def test_lock_file_that_is_a_link_is_refused(exists: bool, tmp_path: Path) -> None:
    run = run_with(tmp_path, "last")
    target = tmp_path / "thesis.txt"
    if exists:
        target.write_text("chapter 1")
    (run.path / ".lock").symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"), run.lock():
        pass
    assert not run.is_locked()
    assert target.exists() == exists
    assert not exists or target.read_text() == "chapter 1"
