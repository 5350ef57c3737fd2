"""Full and failing disks: one line, the exit code, complete files only, and an exact resume."""

import errno
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightning import Callback

from fourfold.checkpoints.files import read_file
from fourfold.errors import DiskError
from scripts.kill_test import difference
from tests.fixtures.failing_disk import FailingDisk

Run = Callable[..., Any]
OPTIONS = (
    *("--model.val_num_beams=0", "--trainer.max_steps=4", "--checkpoint.every_n_steps=1"),
    *("--trainer.log_every_n_steps=1", "--average_last_checkpoints=2"),
    "--average_every_n_steps=2",
)
STRIDE = 20  # writes between the tested ones
ALL_FILES = ["--tensorboard=true", "--log_samples=true"]


def fit(run: Run, configs: dict[str, Path], folder: Path, *more: str) -> Any:
    return run("fit", "--config", configs["mt"], "--run_dir", folder, *OPTIONS, *more)


def files(folder: Path) -> list[str]:
    return [file.name for file in folder.rglob("*")] if folder.exists() else []


def check(result: Any, folder: Path) -> None:
    """Check the output and the files of a training whose disk failed."""
    assert result.code in (2, 75), result
    errors = [line for line in result.err.splitlines() if line.startswith("fourfold: error")]
    assert len(errors) == 1, result.err
    assert "Traceback" not in result.err
    assert not [name for name in files(folder) if name.endswith(".part")]
    if result.code == 2:
        assert not folder.exists()
    else:
        newest = next((folder / "checkpoints").glob("[lp]*.ckpt"), None)
        assert ("to resume from" in errors[0]) == (newest is not None)


@pytest.mark.parametrize(
    ("first", "more"),
    [
        (1, []),
        # Together, every write of a run with all default files.
        *(pytest.param(n, ALL_FILES, marks=pytest.mark.slow) for n in range(1, STRIDE + 1)),
    ],
)
def test_disk_that_fails_at_the_nth_write(
    first: int,
    more: list[str],
    run: Run,
    configs: dict[str, Path],
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = FailingDisk(here, monkeypatch)
    assert fit(run, configs, here / "whole", *more).code == 0
    n_writes = disk.count
    assert n_writes > 20
    codes = set()
    for number in range(first, n_writes + 1, STRIDE):
        folder = here / f"run{number}"
        is_full = number % 2 == 0
        disk.fail_at(number, errno.ENOSPC if is_full else errno.EIO, stays=is_full)
        result = fit(run, configs, folder, *more)
        disk.fail_at(0)
        codes.add(result.code)
        if result.code == 0:  # a link was replaced by a copy, or only samples were not saved
            assert not is_full or "could not save samples" in result.out
            assert difference(here / "whole", folder) == ""
            continue
        check(result, folder)
        if result.code == 75:
            assert fit(run, configs, folder, *more).code == 0
            assert difference(here / "whole", folder) == ""
    assert 75 in codes


def test_start_on_a_full_disk_names_file_and_bytes(
    run: Run, configs: dict[str, Path], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"total": 10**6, "free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    result = fit(run, configs, here / "r")
    assert result.code == 2
    assert "r/checkpoints/last.ckpt will need at least" in result.err
    assert "but 1,000 bytes are free on its disk" in result.err
    assert not (here / "r").exists()


def test_full_disk_in_a_test_and_a_prediction(
    run: Run, configs: dict[str, Path], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fit(run, configs, here / "r").code == 0
    before = set(files(here / "r"))
    disk = FailingDisk(here, monkeypatch)
    for command, name in (("test", "metrics.json"), ("predict", "predictions.txt")):
        disk.fail_at(2)
        result = run(command, "--run_dir", here / "r")
        assert result.code == 2
        assert f"r/{name} cannot be written: No space left on device (" in result.err
        assert "bytes are needed" in result.err
        assert set(files(here / "r")) == before


def test_full_disk_in_export_and_import(
    run: Run, trained: Callable[[str], Path], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = trained("lm") / "checkpoints/last.ckpt"
    assert run("export", checkpoint, here / "hf").code == 0
    disk = FailingDisk(here, monkeypatch)
    commands = {"export": (checkpoint, here / "out"), "import": (here / "hf", here / "new.ckpt")}
    for command, paths in commands.items():
        disk.fail_at(0)
        assert run(command, *paths).code == 0
        n_writes = disk.count
        target = paths[1].with_name(f"{command}.ckpt")
        before = files(here)
        for number in range(1, n_writes + 1):
            disk.fail_at(number)
            result = run(command, paths[0], target)
            assert result.code == 2, result
            assert result.err.count("\n") == 1
            assert target.name in result.err
            assert "bytes are needed" in result.err
            if target.exists() and command == "import":  # the folder was not flushed
                assert read_file(target)
                target.unlink()
            assert files(here) == before


def test_limit_of_the_file_size_in_export(
    run: Run, trained: Callable[[str], Path], here: Path
) -> None:
    """A library in Rust writes the weights, and is not affected by `FailingDisk`."""
    checkpoint = trained("lm") / "checkpoints/last.ckpt"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        result = run("export", checkpoint, here / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert result.code == 2
    assert "out cannot be written: File too large (" in result.err
    assert result.err.count("\n") == 1
    assert not list(here.iterdir())


class FullDisk(Callback):
    """Callback of a user, whose own file cannot be written."""

    def on_train_batch_end(self, *args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_error_of_the_users_own_file_keeps_its_traceback(
    run: Run, configs: dict[str, Path], here: Path
) -> None:
    with pytest.raises(OSError, match="No space left") as raised:
        fit(run, configs, here / "r", f"--trainer.callbacks+={__name__}.FullDisk")
    assert not isinstance(raised.value, DiskError)


def test_full_standard_output_stops_a_training(
    run: Run, configs: dict[str, Path], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        result = fit(run, configs, here / "r")
    assert result.code == 2
    assert "a log file or the standard output: No space left on device" in result.err
