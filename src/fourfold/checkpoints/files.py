"""Checkpoint files on disk: search in a run directory, writing, safe reading."""

import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fourfold.atomic_files import atomic_path
from fourfold.checkpoints.schema import INDEX
from fourfold.errors import InputError
from fourfold.hub.directory import load_archive

# Names of the checkpoints in a run directory, without suffix, in order of preference.
CHECKPOINT_NAMES = ("best", "average", "last")
DIGESTS = "fourfold_digests"  # key in files of version 0.2.0, whose value is not read


class DamagedFile(InputError):
    """Error of a file whose content was changed or truncated after it was written."""


def find_checkpoint(run: Path) -> Path:
    """Return the path of the preferred checkpoint of a run directory.

    These are best.ckpt, average.ckpt (averaged weights) and last.ckpt, in this order.

    Raises:
        InputError: The run directory has no checkpoint.
    """
    for name in CHECKPOINT_NAMES:
        file = run / "checkpoints" / f"{name}.ckpt"
        if os.path.lexists(file):
            return file
    message = "there is no checkpoint; train first with `fourfold fit`, convert a Hugging Face"
    message += " directory with `fourfold import`, or name another run directory or checkpoint file"
    raise InputError(message, file=run / "checkpoints")


def is_sharded(path: str | Path) -> bool:
    """Return True if a path is a sharded checkpoint, which is a directory."""
    return os.path.isfile(os.path.join(path, INDEX))


def is_checkpoint(path: str | Path) -> bool:
    """Return True if a path is a file, or a sharded checkpoint."""
    return os.path.isfile(path) or is_sharded(path)


def is_run(path: str | Path) -> bool:
    """Return True if a path is a directory that is no sharded checkpoint."""
    return os.path.isdir(path) and not is_sharded(path)


def write_file(content: Mapping[str, Any], path: Path) -> None:
    """Write a checkpoint with `torch.save`, completely or not at all, and flush it to the disk.

    The folder of the file must exist.
    """
    with atomic_path(path) as part, part.open("wb") as file:
        torch.save({**content}, file)


def read_file(path: str | Path, *, mmap: bool = False, meta: bool = False) -> dict[str, Any]:
    """Read the dictionary that `torch.save` wrote to a file, without running code in the file.

    The checksums of the zip archive are verified before the file is loaded.

    Args:
        path: Path of the file, or of a sharded checkpoint.
        mmap: The tensors share the memory of the file, so that only those that are used are read.
        meta: The weights and optimizer states of a sharded checkpoint stay on the meta device.

    Raises:
        DamagedFile: The file is truncated or corrupted, or does not hold a dictionary.
        InputError: The file does not exist, may not be read, or does not fit into the memory.
    """
    path = Path(path)
    if not os.path.exists(path):  # unlike Path.exists, False for a name that is too long
        raise InputError("there is no such checkpoint file", file=path)
    if not is_checkpoint(path):
        raise DamagedFile(f"must be a regular file, or a directory with {INDEX}", file=path)
    try:
        if path.is_dir():
            from fourfold.checkpoints import sharded  # imports torch.distributed.checkpoint

            content = sharded.read(path, meta=meta)
        else:
            content = load_archive(path, mmap=mmap)
    except InputError as error:
        raise DamagedFile(f"the checkpoint is corrupted: {error.message}", file=path) from error
    except pickle.UnpicklingError as error:
        raise DamagedFile("not a checkpoint, or a file with code in it", file=path) from error
    except Exception as error:  # torch and zipfile raise many classes for a corrupted file
        if problem := _problem_of_machine(error):
            raise InputError(f"the checkpoint cannot be read: {problem}", file=path) from error
        message = "the checkpoint is corrupted or incomplete, or the file is not a checkpoint"
        raise DamagedFile(message, file=path) from error
    if not isinstance(content, dict):
        raise DamagedFile("not a checkpoint written by fourfold", file=path)
    content.pop(DIGESTS, None)
    return content


def _problem_of_machine(error: Exception) -> str:
    """Return the cause of a read error that is not in the file; "" if the file may be damaged."""
    if isinstance(error, PermissionError):
        return "permission denied"
    texts = ("allocate memory", "not enough memory")  # of a RuntimeError of torch
    is_memory = isinstance(error, MemoryError) or any(text in str(error) for text in texts)
    return "the machine has too little memory" if is_memory else ""
