"""Atomic writing of files: readers see the complete file or none, even if the process is killed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_path(file: Path, suffix: str = "") -> Iterator[Path]:
    """Yield a temporary path in the folder of `file`, and rename it to `file` at the end.

    The temporary file is deleted if the block raises. It is not in $TMPDIR, because a rename is
    atomic within one file system only.

    Args:
        file: Final path.
        suffix: Distinguishes several processes that write the same file. Without it, a temporary
            file that a killed process left is overwritten.
    """
    temporary = file.with_name(f"{file.name}{suffix}.part")
    try:
        yield temporary
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(file: Path, text: str) -> None:
    """Write a text file completely or not at all."""
    with atomic_path(file, f".{os.getpid()}") as temporary:  # all ranks may write the same file
        temporary.write_text(text, encoding="utf-8")
