"""Files that are there completely or not at all, whenever the process is killed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(file: Path) -> Iterator[Path]:
    """A place beside `file` to write to, which gets its name at the end; gone if that fails.

    Beside it and not in $TMPDIR, from where a rename is only atomic on the same file system.
    """
    part = file.with_name(file.name + ".part")
    try:
        yield part
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)


def write_whole(file: Path, text: str) -> None:
    """Write a text file completely or not at all."""
    with whole(file) as part:
        part.write_text(text, encoding="utf-8")
