"""Atomic writing of files: a killed process leaves the complete file, or no file of that name."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_path(file: Path, suffix: str = "") -> Iterator[Path]:
    """Yield a temporary path in the folder of `file`, and rename it to `file` at the end.

    The temporary file is deleted if the block raises. The folder is not $TMPDIR, because a rename
    is atomic within one file system only.

    Args:
        file: Final path.
        suffix: Part of the temporary name that differs between processes that write the same file.
            Without a suffix, the file that a killed process left is overwritten.
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
