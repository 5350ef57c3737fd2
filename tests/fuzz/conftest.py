"""Valid inputs of the fuzz tests: tiny recipes, run directories, Hugging Face directories."""

import io
import os
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from fourfold.checkpoints.files import read_file
from tests.commands.conftest import SHAPE, recipes, write_text
from tests.fuzz.texts import squad

FAMILIES = ("vit", "mt", "lm", "classes", "tags", "mlm", "qa")
LIMITS = {
    "max_steps": 1,
    "max_epochs": 1,
    "limit_train_batches": 2,
    "limit_val_batches": 2,
    "accelerator": "cpu",
    "enable_progress_bar": False,
}


MEMORY_LIMIT = 6 << 30  # bytes that one input may allocate


@dataclass(frozen=True)
class World:
    """Valid inputs.

    Args:
        folder: Directory of all files.
        configs: YAML files by family; each trains for one step.
        runs: Trained run directories by family.
        exported: Directories of transformers by family.
        whole: Complete configs by family, with the default of every option.
    """

    folder: Path
    configs: dict[str, Path]
    runs: dict[str, Path]
    exported: dict[str, Path]
    whole: dict[str, Any]

    def checkpoint(self, family: str) -> bytes:
        """Return the bytes of a trained checkpoint."""
        out = io.BytesIO()
        torch.save(read_file(self.runs[family] / "checkpoints/last.ckpt"), out)
        return out.getvalue()


def _recipe(text: Path, name: str) -> dict[str, Any]:
    files = {part: str(text / f"{part}.json") for part in ("train", "val", "test")}
    sizes = {"max_len": 32, "max_query_length": 8, "doc_stride": 8, "batch_size": 8}
    words = {"tokenizer": {"vocab_size": 60}}
    asked = {
        "model": ("QuestionAnswering", {"max_len": 32}),
        "data": ("QuestionData", {**sizes, **words, **files}),
    }
    known: Any = {**recipes(text), "qa": asked}
    (task, shape), (data, arguments) = known[name]["model"], known[name]["data"]
    open_ = {"n_classes": None} if name == "vit" else {"vocab_size": None}
    config = {**SHAPE, **shape, **open_}
    return {
        "model": {"class_path": f"fourfold.tasks.{task}", "init_args": {"config": config}},
        "data": {"class_path": f"fourfold.data.{data}", "init_args": arguments},
        "trainer": LIMITS,
        "tensorboard": False,
    }


def _make(folder: Path) -> World:
    from fourfold.cli import main

    text = folder / "text"
    write_text(text)
    for part in ("train", "val", "test"):
        (text / f"{part}.json").write_text(squad())
    configs = {name: folder / f"{name}.yaml" for name in FAMILIES}
    for name, file in configs.items():
        file.write_text(yaml.safe_dump(_recipe(text, name)))
    runs = {name: folder / "runs" / name for name in FAMILIES}
    exported = {name: folder / "exported" / name for name in ("vit", "mt", "lm", "mlm", "classes")}
    for name, run in runs.items():
        call = ["fit", "--config", str(configs[name]), "--run_dir", str(run)]
        assert main(call) == 0, name
    for name, target in exported.items():
        assert main(["export", str(runs[name]), str(target)]) == 0, name
    whole = {name: yaml.safe_load((run / "config.yaml").read_text()) for name, run in runs.items()}
    return World(folder, configs, runs, exported, whole)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Return the valid inputs, created once per session."""
    return _make(tmp_path_factory.mktemp("world"))


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Raise if an input starts a process, and restore the environment after each test."""
    from lightning.pytorch.strategies.launchers import multiprocessing, subprocess_script

    def raise_error(*args: object, **options: object) -> None:
        raise AssertionError("a process would have been started")

    for launcher in (
        multiprocessing._MultiProcessingLauncher,
        subprocess_script._SubprocessScriptLauncher,
    ):
        monkeypatch.setattr(launcher, "launch", raise_error)
    before = dict(os.environ), list(sys.path)
    yield
    os.environ.clear()
    os.environ.update(before[0])
    sys.path[:] = before[1]


@pytest.fixture
def limited() -> Iterator[None]:
    """Limit the memory of the process, so that a giant model raises an error of the allocator."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_LIMIT, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)
