"""Full and failing disks: one line, the exit code, complete files only, and an exact resume."""

import errno
import io
import re
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightning import Callback
from PIL import Image

from fourfold.checkpoints.files import read_file
from fourfold.errors import DiskError
from scripts.tools.kill_test import difference
from tests.fixtures.failing_disk import FailingDisk
from tests.fixtures.fake_network import use_fake_network

Run = Callable[..., Any]
OPTIONS = (
    *("--model.val_num_beams=0", "--trainer.max_steps=4", "--checkpoint.every_n_steps=1"),
    *("--trainer.log_every_n_steps=1", "--average_last_checkpoints=2"),
    "--average_every_n_steps=2",
)
STRIDE = 20  # writes between the tested ones
SHARDED = ["--checkpoint.format=sharded", "--checkpoint.async_save=true"]
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
    ("first", "stride", "more"),
    [
        (1, STRIDE, []),
        # Together, every write of a run with all default files.
        *(pytest.param(n, STRIDE, ALL_FILES, marks=pytest.mark.slow) for n in range(1, STRIDE + 1)),
        *(pytest.param(n, 51, SHARDED, marks=pytest.mark.slow) for n in (3, 20, 37)),
    ],
)
def test_disk_that_fails_at_the_nth_write(
    first: int,
    stride: int,
    more: list[str],
    run: Run,
    configs: dict[str, Path],
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fail_writes(run, configs["mt"], here, monkeypatch, first, stride, OPTIONS, *more)


def fail_writes(
    run: Run,
    config: Path,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: int,
    stride: int,
    options: tuple[str, ...],
    *more: str,
) -> None:
    """Check runs of a recipe in which every `stride`-th write fails, and their continuations."""
    disk = FailingDisk(here, monkeypatch)

    def train(folder: Path) -> Any:
        return run("fit", "--config", config, "--run_dir", folder, *options, *more)

    assert train(here / "whole").code == 0
    n_writes = disk.count
    assert n_writes > 20
    codes = set()
    for number in range(first, n_writes + 1, stride):
        folder = here / f"run{number}"
        is_full = number % 2 == 0
        disk.fail_at(number, errno.ENOSPC if is_full else errno.EIO, stays=is_full)
        result = train(folder)
        disk.fail_at(0)
        codes.add(result.code)
        if result.code == 0:  # a link was replaced by a copy, or only samples were not saved
            assert not is_full or "could not save samples" in result.out
            assert difference(here / "whole", folder) == ""
            continue
        check(result, folder)
        if result.code == 75:
            assert train(folder).code == 0
            assert difference(here / "whole", folder) == ""
    assert 75 in codes


SMALL = {"d_model": 16, "n_heads": 2, "d_ff": 32}
# Model and data of systems beside the four families.
SYSTEMS: dict[str, Any] = {
    "recurrent": (
        "RecurrentTranslation",
        {"d_model": 16, "hidden_size": 16, "n_layers": 1, "vocab_size": None, "max_len": 32},
        None,  # the data of the encoder-decoder
        {},
    ),
    "masked images": (
        "MaskedImageModeling",
        {
            **SMALL,
            "n_layers": 1,
            "image_size": 8,
            "patch_size": 2,
            "n_channels": 1,
            "decoder_d_model": 16,
            "n_decoder_layers": 1,
            "decoder_n_heads": 2,
            "decoder_d_ff": 32,
        },
        "MaskedImageData",
        {"source": "digits", "batch_size": 256, "patch_size": 2},
    ),
    "captions": (
        "RecurrentCaptioning",
        {
            "d_model": 16,
            "hidden_size": 16,
            "d_attn": 16,
            "vocab_size": None,
            "max_len": 30,
            "n_channels": 112,
        },
        "CaptionData",
        {
            "source": "images",
            "captions": "captions.csv",
            "features": {"layer": "block10"},
            "batch_size": 2,
            "max_len": 30,
            "tokenizer": {"kind": "char"},
            "val_fraction": 0.2,
            "test_fraction": 0.2,
        },
    ),
}


def system(name: str, configs: dict[str, Path], here: Path, monkeypatch: Any) -> Path:
    """Write the config and the data of a system, and return the config's path."""
    tree = yaml.safe_load(configs["mt"].read_text())
    task, config, data, arguments = SYSTEMS[name]
    tree["model"] = {"class_path": f"fourfold.tasks.{task}", "init_args": {"config": config}}
    if data is not None:
        tree["data"] = {"class_path": f"fourfold.data.{data}", "init_args": arguments}
    if name == "captions":
        use_fake_network(monkeypatch)
        folder = here.with_name("pictures")
        (folder / "images").mkdir(parents=True)
        lines = ["image,caption"]
        for k in range(10):
            Image.new("RGB", (12, 10), (20 * k, 9, 99)).save(folder / f"images/{k}.png")
            lines.append(f"{k}.png,picture {k}")
        (folder / "captions.csv").write_text("\n".join(lines) + "\n")
        arguments = {**arguments, "source": str(folder)}
        tree["data"]["init_args"] = arguments
    file = here.with_name("system.yaml")
    file.write_text(yaml.safe_dump(tree))
    return file


@pytest.mark.parametrize(
    ("name", "stride"),
    [
        ("recurrent", 50),
        *(
            pytest.param(name, 3, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])
            for name in SYSTEMS
        ),
    ],
)
def test_disk_that_fails_during_the_training_of_other_systems(
    name: str,
    stride: int,
    run: Run,
    configs: dict[str, Path],
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = system(name, configs, here, monkeypatch)
    options = tuple(o for o in OPTIONS if "beams" not in o)
    options += () if name == "masked images" else ("--model.val_num_beams=0",)
    fail_writes(run, config, here, monkeypatch, 2, stride, options, *ALL_FILES)


def test_full_disk_while_features_are_stored(
    run: Run, configs: dict[str, Path], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = system("captions", configs, here, monkeypatch)
    cache = f"--data.features.cache={here}/cache"
    command = ("fit", "--config", config, "--run_dir", here / "r", "--trainer.max_steps=1", cache)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, limits[1]))
    try:
        result = run(*command)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert result.code == 2
    assert re.search(r"cache/\w+ cannot be written: File too large", result.err)
    assert "Traceback" not in result.err
    assert [Path(name).suffix for name in files(here)] == ["", ".lock"]
    assert run(*command).code == 0
    # The captions cannot be printed, either.
    lines = "\n".join(str(path) for path in sorted(here.with_name("pictures").rglob("*.png")))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        result = run("caption", "--checkpoint", here / "r")
    assert result.code == 2
    assert "the standard output: No space left on device" in result.err
    assert "Traceback" not in result.err


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
        assert f"r/{name} cannot be written: No space left on device" in result.err
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
    assert "out cannot be written: File too large" in result.err
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
