"""From a checkpoint file alone to a task that can work."""

import importlib
import pickle
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fourfold.core.errors import InputError

if TYPE_CHECKING:
    from fourfold.tasks.base import Task

# What a file gives that is cut off, or no archive.
NOT_WHOLE = (zipfile.BadZipFile, OSError, EOFError, zlib.error)


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """The content of a fourfold checkpoint, on the CPU.

    Raises:
        InputError: As `read_file`, or the file is not ours.
    """
    content = read_file(path)
    if "fourfold" not in content:
        raise InputError(f"{path}: not a checkpoint written by fourfold")
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
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise InputError(f"{path}: the checkpoint is broken or cut off") from error
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
    saved = content["fourfold"]
    tasks = importlib.import_module("fourfold.tasks")
    task_class = getattr(tasks, saved["task"], None)
    if task_class is None:
        raise InputError(f"{path}: the task {saved['task']!r} is not known here")
    wanted = (expect,) if isinstance(expect, str) else expect or ("Task",)
    if not issubclass(task_class, tuple(getattr(tasks, name) for name in wanted)):
        needed = " or ".join(wanted)
        raise InputError(f"{path}: a checkpoint of {saved['task']}, but {needed} is needed")
    task: Task = task_class.from_init_args(saved["init_args"])
    try:
        task.load_state_dict(content["state_dict"])
    except RuntimeError as error:
        raise InputError(f"{path}: the weights do not fit the model they name") from error
    task.artifacts = saved["data"]
    return task.eval()
