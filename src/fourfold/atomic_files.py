"""Atomic writing of files, renaming of damaged files, and errors of full or failing disks.

If a process is killed or a machine loses power while a file is written, the complete new file or
the unchanged old file remains.
"""

import errno
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from traceback import walk_tb

from fourfold.errors import DiskError

# Errors of a full disk, of a quota or another limit, and of a failing disk.
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
DISK_ERRORS = {*FULL, errno.EIO, errno.EROFS}
# Packages that write files on behalf of other packages.
WRITERS = {*sys.stdlib_module_names, "fsspec", "tensorboard", "torch"}


@contextmanager
def atomic_path(file: Path, suffix: str = "") -> Iterator[Path]:
    """Context that yields the path of a temporary file, which is renamed to `file` at the end.

    The block under the `with` statement writes the temporary file. If the block raises an error,
    the temporary file is deleted. The content and the new name are flushed to the disk. The
    temporary file is in the folder of `file` and not in $TMPDIR, because a rename is atomic within
    one file system only.

    Args:
        file: Final path.
        suffix: End of the temporary file's name. If several processes may write `file` at the same
            time, each must use a different suffix. A killed process leaves its temporary file,
            which the next call with the same suffix overwrites.

    Raises:
        DiskError: The disk is full or fails.
    """
    temporary = file.with_name(f"{file.name}{suffix}.part")
    try:
        with disk_errors(file):
            temporary.unlink(missing_ok=True)  # it may be a link or a FIFO
            yield temporary
            sync(temporary)
            os.replace(temporary, file)
            if os.name == "posix":
                sync(file.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(file: Path, text: str) -> None:
    """Write `text` to the UTF-8 file `file`; if writing fails, an earlier file is unchanged.

    Raises:
        DiskError: The disk is full or fails.
    """
    content = text.encode()
    suffix = f".{os.getpid()}"  # all ranks may write the same file
    with disk_errors(file, len(content)), atomic_path(file, suffix) as temporary:
        temporary.write_bytes(content)


def sync(path: Path) -> None:
    """Flush the content of a file, or the list of files in a folder, to the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def set_aside(path: Path, reason: str, outcome: str = "") -> None:
    """Rename a damaged file or directory to NAME.corrupted, and print one line on stderr.

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


@contextmanager
def disk_errors(file: Path, size: int | None = None) -> Iterator[None]:
    """Context that converts errors of a full or failing disk to a DiskError.

    torch raises a RuntimeError in this case, which is converted, too.

    Args:
        file: The file or directory that the block under the `with` statement writes.
        size: Number of bytes that the file needs; None if the number is not known.

    Raises:
        DiskError: The disk is full or fails.
    """
    try:
        yield
    except DiskError as error:
        if size is None or error.size is not None or error.code is None:
            raise
        raise _make_error(file, error.code, size) from error
    except Exception as error:
        # torch raises a RuntimeError in place of the error of the file that it writes to.
        cause = error.__context__ if isinstance(error, RuntimeError) else error
        code = _error_code(cause)
        if code not in DISK_ERRORS:
            raise
        raise _make_error(file, code, size) from error


def disk_error(error: OSError) -> DiskError | None:
    """Convert an OSError of a full or failing disk to a DiskError, or return None.

    The result is None for an error with another cause, and for an error that was raised by code
    outside of fourfold and Lightning, such as the user's own code.
    """
    if isinstance(error, DiskError):
        return error
    frames = [str(frame.f_globals.get("__name__")) for frame, _ in walk_tb(error.__traceback__)]
    packages = [name.partition(".")[0] for name in frames]
    while packages and packages[-1] in WRITERS:
        packages.pop()
    if error.errno not in DISK_ERRORS or packages[-1:] not in (["fourfold"], ["lightning"]):
        return None
    if isinstance(error.__context__, DiskError):  # a logger is closed after the error
        return error.__context__
    file = error.filename or "a log file or the standard output"
    return DiskError(f"{file}: {os.strerror(error.errno)}")


def _error_code(error: BaseException | None) -> int | None:
    """Return the errno of an OSError, or of an error of a Rust library with "os error" in its text.

    The result is None for other errors and for None.
    """
    if isinstance(error, OSError):
        return error.errno
    match = re.search(r"\(os error (\d+)\)", str(error))
    return int(match[1]) if match else None


def _make_error(file: Path, code: int, size: int | None) -> DiskError:
    text = f"{file} cannot be written: {os.strerror(code)}"
    parts = [] if size is None else [f"{size:,} bytes are needed"]
    if code in FULL:
        with suppress(OSError):
            parts.append(f"{shutil.disk_usage(file.parent).free:,} bytes are free")
    error = DiskError(f"{text} ({', '.join(parts)})" if parts else text)
    error.code, error.size = code, size
    return error
