"""Atomic writing of files: a killed process leaves the complete file, or no file of that name."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_path(file: Path, suffix: str = "") -> Iterator[Path]:
    """Context that yields the path of a temporary file, which is renamed to `file` at the end.

    The block under the `with` statement writes the temporary file. If the block raises an error,
    the temporary file is deleted. The temporary file is in the folder of `file` and not in $TMPDIR,
    because a rename is atomic within one file system only.

    Args:
        file: Final path.
        suffix: End of the temporary file's name. If several processes may write `file` at the same
            time, each must use a different suffix. A killed process leaves its temporary file,
            which the next call with the same suffix overwrites.
    """
    temporary = file.with_name(f"{file.name}{suffix}.part")
    try:
        yield temporary
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(file: Path, text: str) -> None:
    """Write `text` to a UTF-8 file, completely or not at all."""
    with atomic_path(file, f".{os.getpid()}") as temporary:  # all ranks may write the same file
        temporary.write_bytes(text.encode())
