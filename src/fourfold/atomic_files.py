"""Atomic writing of files: a killed process leaves the complete file, or no file of that name."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_path(file: Path, suffix: str = "") -> Iterator[Path]:
    """Context that yields a temporary path, whose file is renamed to `file` when the block ends.

    If the block raises, the temporary file is deleted. The temporary file is in the folder of
    `file` and not in $TMPDIR, because a rename is atomic within one file system only.

    Args:
        file: Final path.
        suffix: End of the temporary file's name. Processes that may write `file` at the same time
            need different suffixes. With one fixed suffix, the temporary file that a killed process
            left is overwritten by the next call.
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
        temporary.write_text(text, encoding="utf-8")
