"""Files that are there completely or not at all, whenever the process is killed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(file: Path, own: str = "") -> Iterator[Path]:
    """A place beside `file` to write to, which gets its name at the end; gone if that fails.

    Beside it and not in $TMPDIR, from where a rename is only atomic on the same file system.

    Args:
        file: Its name in the end.
        own: What tells this writer from others at the same file; none where there is one alone, so
            that what a killed one left is written over.
    """
    part = file.with_name(f"{file.name}{own}.part")
    try:
        yield part
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)


def write_whole(file: Path, text: str) -> None:
    """Write a text file completely or not at all."""
    with whole(file, f".{os.getpid()}") as part:  # all ranks may write the same
        part.write_text(text, encoding="utf-8")
