"""From a checkpoint file alone to a task that can work."""

import pickle
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning
import torch
from lightning import LightningModule

from fourfold.core.errors import InputError
from fourfold.hub.directory import CONFIG
from fourfold.tasks.saved import check_arguments, check_content, check_training

if TYPE_CHECKING:
    from fourfold.tasks.base import Task

WORDS = ("best", "average", "last")  # of a run's checkpoints; the first there is used
MARKS = (b"P", b"\x80", b"")  # first byte of an archive, of a pickle, of a file cut off there
# What a file gives that is cut off, or no archive.
NOT_WHOLE = (zipfile.BadZipFile, OSError, EOFError, zlib.error)


def checkpoint_of(run: Path) -> Path:
    """The checkpoint of a run directory that is tested, exported, or begun with elsewhere.

    Raises:
        InputError: It has none.
    """
    files = (run / "checkpoints" / f"{word}.ckpt" for word in WORDS)
    if found := next(filter(Path.is_file, files), None):
        return found
    if (run / CONFIG).is_file():
        raise InputError(f"{run}: a directory of transformers; `fourfold import {run} FILE` first")
    raise InputError(
        f"{run / 'checkpoints'}: there is no checkpoint; train first with `fourfold fit`, or name"
        " another run directory or a checkpoint file"
    )


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """The content of a fourfold checkpoint, on the CPU.

    Raises:
        InputError: As `read_file`, or the file is not ours.
    """
    return _ours(read_file(path), path)


def _ours(content: dict[str, Any], path: str | Path) -> dict[str, Any]:
    if "fourfold" not in content:
        raise InputError(f"{path}: not a checkpoint written by fourfold")
    return content


def _check(
    content: dict[str, Any], path: str | Path, *checks: Callable[[dict[str, Any]], None]
) -> None:
    try:
        for check in checks:
            check(content)
    except InputError as error:
        raise InputError(f"{path}: not as fourfold writes a checkpoint: {error}") from error


def read_for_trainer(path: str | Path) -> dict[str, Any]:
    """`read_checkpoint` for Lightning, which asks each for the version that wrote it.

    An imported one has none, and may be measured all the same. Weights alone are what a forked
    process hands over to the one that started it.

    Raises:
        InputError: As `read_checkpoint`.
    """
    content = read_file(path)
    if all(isinstance(value, torch.Tensor) for value in content.values()):
        return content
    _check(_ours(content, path), path, check_content, check_training)
    content.setdefault("pytorch-lightning_version", lightning.__version__)
    return content


def read_file(path: str | Path) -> dict[str, Any]:
    """The dictionary in a file of torch, on the CPU; code in it is never run.

    Raises:
        InputError: There is no such file, it is broken, or it holds something else.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: there is no such checkpoint file")
    _refuse_damage(path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(f"{path}: not a checkpoint, or one that wants to run code") from error
    except Exception as error:  # whatever a file that is cut off or damaged makes of it
        with path.open("rb") as file:
            begins_as_one = file.read(1) in MARKS
        what = "the checkpoint is broken or cut off" if begins_as_one else "not a checkpoint"
        raise InputError(f"{path}: {what}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: not a checkpoint written by fourfold")
    return content


def _refuse_damage(path: Path) -> None:
    """torch does not compare the checksums that are in the file."""
    try:
        damaged = _damaged_part(path)
    except NOT_WHOLE:
        return  # cut off, or no checkpoint at all: torch says which
    if damaged is not None:
        raise InputError(f"{path}: the checkpoint is damaged: {damaged} is not what was written")


def is_whole(path: Path) -> bool:
    """Whether a file holds all that was once written to it."""
    try:
        return _damaged_part(path) is None
    except NOT_WHOLE:
        return False


def _damaged_part(path: Path) -> str | None:
    with zipfile.ZipFile(path) as archive:
        return archive.testzip()


def load_task(path: str | Path, expect: str | tuple[str, ...] | None = None) -> "Task":
    """Rebuild a task with its model, weights, tokenizer and preprocessing, in eval mode.

    Args:
        path: A `.ckpt` file written by `fourfold fit`.
        expect: Names of the classes that the task must be one of, or derived from.

    Raises:
        InputError: As `read_checkpoint`; or another task than expected; or weights that do not fit.
    """
    return rebuild(read_checkpoint(path), path, expect)


def rebuild(
    content: dict[str, Any], path: str | Path, expect: str | tuple[str, ...] | None = None
) -> "Task":
    """`load_task` of what `read_checkpoint` gave."""
    _check(content, path, check_content)
    saved = content["fourfold"]
    named = (found for found in _subclasses(LightningModule) if found.__name__ == saved["task"])
    task_class: Any = next(named, None)
    if not hasattr(task_class, "from_init_args"):  # no module, or none of ours
        raise InputError(f"{path}: the task {saved['task']!r} is not known here")
    wanted = (expect,) if isinstance(expect, str) else expect or ("Task",)
    if not {parent.__name__ for parent in task_class.__mro__}.intersection(wanted):
        needed = " or ".join(wanted)
        raise InputError(f"{path}: a checkpoint of {saved['task']}, but {needed} is needed")
    try:
        check_arguments(task_class, saved["init_args"])
        task: Task = task_class.from_init_args(saved["init_args"])
    except InputError as error:
        raise InputError(f"{path}: no task can be made of what it says: {error}") from error
    except RuntimeError as error:  # torch cannot count, or the machine not hold, so many weights
        raise InputError(f"{path}: the model that it describes is too large") from error
    try:
        task.load_state_dict(content["state_dict"])
    except RuntimeError as error:
        raise InputError(f"{path}: the weights do not fit the model they name") from error
    names, n_classes = saved["data"].get("class_names"), getattr(task.config, "n_classes", None)
    if names and n_classes not in (None, len(names)):
        raise InputError(f"{path}: it names {len(names)} classes, but its model has {n_classes}")
    task.artifacts = saved["data"]
    return task.eval()


def _subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    """All that are loaded, a user's own among them, from the oldest.

    `Task` itself cannot be named here: each can begin with the checkpoint of another.
    """
    for child in cls.__subclasses__():
        yield child
        yield from _subclasses(child)
