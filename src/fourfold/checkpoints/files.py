"""Checkpoint files on disk: search in a run directory, safe reading, and test for corruption."""

import os
import pickle
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from fourfold.errors import InputError

CHECKPOINT_NAMES = ("best", "average", "last")  # in a run directory, in order of preference
# Errors that `zipfile` raises for a truncated or corrupted archive.
CORRUPTION_ERRORS = (zipfile.BadZipFile, OSError, EOFError, zlib.error)


def find_checkpoint(run: Path) -> Path:
    """Return the preferred checkpoint of a run directory.

    The file is best.ckpt if it exists, otherwise average.ckpt (averaged weights), otherwise
    last.ckpt.

    Args:
        run: Run directory, which holds the config, the logs and the checkpoints of one training.

    Raises:
        InputError: The run directory has no checkpoint.
    """
    for name in CHECKPOINT_NAMES:
        file = run / "checkpoints" / f"{name}.ckpt"
        if file.is_file():
            return file
    message = (
        "there is no checkpoint; train first with `fourfold fit`, convert a Hugging Face directory"
        " with `fourfold import`, or name another run directory or a checkpoint file"
    )
    raise InputError(message, file=run / "checkpoints")


def read_file(path: str | Path) -> dict[str, Any]:
    """Read the dictionary that `torch.save` wrote to a file, without running code in the file.

    Tensors are placed on the CPU. Checksums are verified.

    Raises:
        InputError: The file does not exist, is corrupted, or does not hold a dictionary.
    """
    path = Path(path)
    if not os.path.isfile(path):  # unlike Path.is_file, False for a name that is too long
        raise InputError("there is no such checkpoint file", file=path)
    with suppress(*CORRUPTION_ERRORS):  # truncated, or no archive: `torch.load` tells the two apart
        if member := _corrupted_member(path):
            message = f"the checkpoint is corrupted: checksum of {member} is wrong"
            raise InputError(message, file=path)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError("not a checkpoint, or a file with code in it", file=path) from error
    except Exception as error:  # torch raises many classes for a truncated or corrupted file
        message = "the checkpoint is corrupted or incomplete, or the file is not a checkpoint"
        raise InputError(message, file=path) from error
    if not isinstance(content, dict):
        raise InputError("not a checkpoint written by fourfold", file=path)
    return content


def is_complete(path: Path) -> bool:
    """Return True if a checkpoint file exists and is not truncated, and its checksums are right."""
    try:
        return _corrupted_member(path) is None
    except CORRUPTION_ERRORS:
        return False


def _corrupted_member(path: Path) -> str | None:
    """Return the name of the first file with a wrong checksum in the zip archive of a checkpoint.

    The result is None if all checksums are right. `torch.load` does not verify checksums.
    """
    with zipfile.ZipFile(path) as archive:
        return archive.testzip()
