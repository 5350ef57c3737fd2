"""Atomic writing of files, and renaming of damaged ones.

A killed process, or a machine that loses power, leaves the complete new file or the old one.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_path(file: Path, suffix: str = "") -> Iterator[Path]:
    """Context that yields the path of a temporary file, which is renamed to `file` at the end.

    The file and the new name are flushed to the disk.

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
        sync(temporary)
        os.replace(temporary, file)
        if os.name == "posix":
            sync(file.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(file: Path, text: str) -> None:
    """Write `text` to a UTF-8 file, completely or not at all."""
    with atomic_path(file, f".{os.getpid()}") as temporary:  # all ranks may write the same file
        temporary.write_bytes(text.encode())


def sync(path: Path) -> None:
    """Flush a file, or the list of files in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def set_aside(path: Path, reason: str, outcome: str = "") -> None:
    """Rename a damaged file or directory to NAME.corrupted, and print one line about it.

    If that name is taken, a number is appended. Nothing happens if another process has already
    renamed the file.

    Args:
        path: The file or directory.
        reason: Clause that says what is damaged.
        outcome: Clause that says how the program continues.
    """
    target = path.with_name(f"{path.name}.corrupted")
    number = 2
    while target.exists():
        target = path.with_name(f"{path.name}.corrupted_{number}")
        number += 1
    try:
        path.rename(target)
    except FileNotFoundError:
        return
    outcome = f"; {outcome}" if outcome else ""
    print(f"{path}: {reason}; renamed to {target.name}{outcome}", file=sys.stderr, flush=True)
