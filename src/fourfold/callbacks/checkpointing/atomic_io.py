"""Checkpoint files that are whole or absent, whenever the process is killed."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.checkpoint_io import CheckpointIO

from fourfold.files import whole


class AtomicCheckpointIO(CheckpointIO):
    """Writes beside the target and renames; reads with the function given.

    Lightning stages in $TMPDIR, from where a rename is only atomic on the same file system
    (measured: 10 of 25 kills left a broken file).

    Args:
        read: From a path to a checkpoint's content on the CPU; says plainly what is wrong with it.
    """

    def __init__(self, read: Callable[[str | Path], dict[str, Any]]) -> None:
        self._read = read

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        """Write `checkpoint` to `path`, complete on the disk before it gets its name."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as part, part.open("wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        sync_names(path.parent)

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """The content of `path`; tensors are on the CPU, and code in it is never run."""
        return self._read(path)

    def remove_checkpoint(self, path: str | Path) -> None:
        """Delete the file, if it is there."""
        Path(path).unlink(missing_ok=True)


def sync_names(folder: Path) -> None:
    """Bring a folder's list of names to the disk, where the system knows how."""
    if os.name != "posix":
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
