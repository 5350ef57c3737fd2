"""Checkpoint files on disk: search in a run directory, writing, safe reading, integrity."""

import os
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fourfold.atomic_files import atomic_path
from fourfold.checkpoints.digests import KEY, compute_digests, find_mismatch
from fourfold.errors import InputError

# Names of the checkpoints in a run directory, without suffix, in order of preference.
CHECKPOINT_NAMES = ("best", "average", "last")
ZIP_START = b"PK\x03\x04"  # first bytes of a file for which torch reads a zip archive
DOS_DIRECTORY = 0x10  # bit of an entry's external attributes that marks a directory


class DamagedFile(InputError):
    """Error of a file whose content was changed or truncated after it was written."""


def find_checkpoint(run: Path) -> Path:
    """Return the path of the preferred checkpoint of a run directory.

    The checkpoint is best.ckpt if this file exists, otherwise average.ckpt (averaged weights),
    otherwise last.ckpt.

    Args:
        run: Run directory, which holds the config, the logs and the checkpoints of one training.

    Raises:
        InputError: The run directory has no checkpoint.
    """
    for name in CHECKPOINT_NAMES:
        file = run / "checkpoints" / f"{name}.ckpt"
        if os.path.lexists(file):
            return file
    message = (
        "there is no checkpoint; train first with `fourfold fit`, convert a Hugging Face directory"
        " with `fourfold import`, or name another run directory or a checkpoint file"
    )
    raise InputError(message, file=run / "checkpoints")


def write_file(content: Mapping[str, Any], path: Path) -> None:
    """Write a checkpoint with its digests, completely or not at all, and flush it to the disk.

    `torch.save` writes the file. The key `fourfold_digests` is added and holds the digests.

    Args:
        content: The checkpoint.
        path: Path of the file, whose folder exists.
    """
    values = {name: value for name, value in content.items() if name != KEY}
    with atomic_path(path) as part, part.open("wb") as file:
        torch.save({**values, KEY: compute_digests(values)}, file)


def read_file(path: str | Path) -> dict[str, Any]:
    """Read the dictionary that `torch.save` wrote to a file, without running code in the file.

    The checksums of the zip archive are verified before the file is loaded. The digests of tensors
    and values are verified afterwards. Files of other programs, and those of earlier versions of
    fourfold, have no digests.

    Args:
        path: Path of the file.

    Returns:
        The dictionary without the digests. All tensors are on the CPU.

    Raises:
        DamagedFile: The file is truncated or corrupted, or does not hold a dictionary.
        InputError: The file does not exist, may not be read, or does not fit into the memory.
    """
    path = Path(path)
    if not os.path.exists(path):  # unlike Path.exists, False for a name that is too long
        raise InputError("there is no such checkpoint file", file=path)
    if not path.is_file():
        raise DamagedFile("a checkpoint must be a regular file", file=path)
    try:
        _check_archive(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
        mismatch = ""
        if isinstance(content, dict) and (digests := content.pop(KEY, None)) is not None:
            mismatch = find_mismatch(content, digests)
    except InputError:
        raise
    except pickle.UnpicklingError as error:
        raise DamagedFile("not a checkpoint, or a file with code in it", file=path) from error
    except Exception as error:  # torch and zipfile raise many classes for a corrupted file
        if problem := _problem_of_machine(error):
            raise InputError(f"the checkpoint cannot be read: {problem}", file=path) from error
        message = "the checkpoint is corrupted or incomplete, or the file is not a checkpoint"
        raise DamagedFile(message, file=path) from error
    if not isinstance(content, dict):
        raise DamagedFile("not a checkpoint written by fourfold", file=path)
    if mismatch:
        message = f"the checkpoint is corrupted: digest of {mismatch[:80]} is wrong"
        hint = f"a program that changes a checkpoint must remove the key {KEY}"
        raise DamagedFile(f"{message} ({hint})", file=path)
    return content


def _check_archive(path: Path) -> None:
    """Check the entries of the zip archive of a checkpoint, and their checksums.

    `torch.load` does not verify checksums. Nothing is checked if the file does not begin like a zip
    archive; `torch.load` then reads its own older format.

    Raises:
        DamagedFile: An entry is compressed, is marked as a directory, overlaps another entry or has
            a wrong checksum.
    """
    with path.open("rb") as file:
        if file.read(len(ZIP_START)) != ZIP_START:
            return
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            # torch does not compress. A small compressed entry could unpack to a very large one.
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
                message = f"the checkpoint is corrupted: {entry.filename[:80]} is compressed"
                raise DamagedFile(message, file=path)
            if entry.is_dir() or entry.external_attr & DOS_DIRECTORY:
                message = f"the checkpoint is corrupted: {entry.filename[:80]} is a directory"
                raise DamagedFile(message, file=path)
        if sum(entry.file_size for entry in archive.infolist()) > path.stat().st_size:
            raise DamagedFile("the checkpoint is corrupted: its entries overlap", file=path)
        if member := archive.testzip():
            message = f"the checkpoint is corrupted: checksum of {member[:80]} is wrong"
            raise DamagedFile(message, file=path)


def _problem_of_machine(error: Exception) -> str:
    """Return the cause of a read error if the cause is the machine and not the file.

    The possible causes are missing permission and lack of memory. For lack of memory, torch raises
    a RuntimeError, which is recognized by the text of its message.

    Args:
        error: Error that was raised while a checkpoint was read.

    Returns:
        The cause, such as "permission denied"; "" if the file itself may be corrupted.
    """
    if isinstance(error, PermissionError):
        return "permission denied"
    texts = ("allocate memory", "not enough memory")
    is_memory = isinstance(error, MemoryError) or any(text in str(error) for text in texts)
    return "the machine has too little memory" if is_memory else ""
