"""Atomic checkpoint files: a CheckpointIO plugin of Lightning."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.fabric.plugins.io.checkpoint_io import CheckpointIO

from fourfold.atomic_files import disk_errors, remove
from fourfold.checkpoints.files import write_file


class AtomicCheckpointIO(CheckpointIO):
    """Plugin that writes a checkpoint to a temporary file, and renames the complete file.

    The temporary file is in the folder of the checkpoint. Lightning's own plugin writes a temporary
    file to $TMPDIR. If $TMPDIR is on another file system, Lightning's file is copied instead of
    renamed, and a killed process can leave an incomplete checkpoint.

    Args:
        read: Function from the path of a checkpoint to its content, with tensors on the CPU.
            It raises InputError for an incomplete file. Its keyword argument `meta` is that of
            `read_file`.
    """

    def __init__(self, read: Callable[..., dict[str, Any]]) -> None:
        self._read = read

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None
    ) -> None:
        """Write a checkpoint to a temporary file, then rename it; a missing folder is created.

        Raises:
            DiskError: The disk is full or fails. An earlier file of that name is kept.
        """
        path = Path(path)
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(checkpoint, path)

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Return the content of a checkpoint.

        With "meta" as `map_location`, the weights and optimizer states of a sharded checkpoint stay
        on the meta device. All other arguments are ignored.
        """
        return self._read(path, meta=map_location == "meta")

    def remove_checkpoint(self, path: str | Path) -> None:
        """Delete a checkpoint file, or a sharded checkpoint, if it exists."""
        remove(Path(path))
