"""Atomic writing, hashes and renaming of files, and errors of full or failing disks.

If a process is killed or a machine loses power while a file is written, the complete new file or
the unchanged old file remains.
"""

import errno
import hashlib
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb

from fourfold.errors import DiskError

# Errors of a full disk, of a quota or another limit, and of a failing disk.
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}
# Packages that write files on behalf of other packages.
WRITERS = {*sys.stdlib_module_names, "fsspec", "rich", "tensorboard", "torch", "tqdm", "yaml"}


@contextmanager
def atomic_path(file: Path, suffix: str = "") -> Iterator[Path]:
    """Context that yields the path of a temporary file, which is renamed to `file` at the end.

    The block under the `with` statement writes the temporary file. If the block raises an error,
    the temporary file is deleted. The content and the new name are flushed to the disk.

    Args:
        file: Final path.
        suffix: End of the temporary file's name. If several processes may write `file` at the same
            time, each must use a different suffix. A killed process leaves its temporary file,
            which the next call with the same suffix overwrites.

    Raises:
        DiskError: The disk is full or fails.
    """
    # In the same folder, because a rename is atomic within one file system only.
    temporary = file.with_name(f"{file.name}{suffix}.part")
    try:
        with disk_errors(file):
            temporary.unlink(missing_ok=True)  # it may be a link or a FIFO
            yield temporary
            sync(temporary)
            replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def replace(temporary: Path, target: Path) -> None:
    """Rename a file or a directory to `target`, and flush the new name to the disk.

    A file replaces a file in one step. For an instant, there is no `target` if one of both is a
    directory; its earlier content is then at NAME.old.
    """
    old = target.with_name(f"{target.name}.old")
    if temporary.is_dir() or target.is_dir():
        remove(old)
        if target.exists():
            target.rename(old)
    os.replace(temporary, target)
    if os.name == "posix":
        sync(target.parent)
    remove(old)


def remove(path: Path) -> None:
    """Delete a file or a directory, if it exists; a directory is never visible in parts."""
    if path.is_dir() and not path.is_symlink():
        hidden = path.with_name(f"{path.name}.removed")
        shutil.rmtree(hidden, ignore_errors=True)
        path.rename(hidden)
        shutil.rmtree(hidden)
    else:
        path.unlink(missing_ok=True)


def write_atomically(file: Path, text: str) -> None:
    """Write `text` to the UTF-8 file `file`; if writing fails, an earlier file is unchanged."""
    with atomic_path(file, f".{os.getpid()}") as temporary:  # all ranks may write the same file
        temporary.write_bytes(text.encode())


def sync(path: Path) -> None:
    """Flush the content of a file, or the list of files in a folder, to the disk (fsync)."""
    # Windows flushes only files that are open for writing.
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(file: Path) -> str:
    """Return the SHA-256 of the bytes of a file as a hexadecimal string."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def set_aside(path: Path, reason: str, outcome: str = "") -> None:
    """Rename a damaged file or directory to NAME.corrupted, and print one line on stderr.

    If that name is taken, a number is appended. Nothing happens if another process has already
    renamed the file. `reason` is a clause that says what is damaged, `outcome` one that says how
    the program continues.
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
def disk_errors(file: Path) -> Iterator[None]:
    """Context in which errors of a full or failing disk, as `file` is written, are DiskErrors."""
    try:
        yield
    except Exception as error:
        if (code := _error_code(error)) not in DISK_ERRORS:
            raise
        raise DiskError(f"{file} cannot be written: {os.strerror(code)}") from error


def disk_error(error: OSError) -> DiskError | None:
    """Convert an OSError of a full or failing disk to a DiskError.

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


def _error_code(error: BaseException | None) -> int:
    """Return the errno of an OSError or of an error of a Rust library; 0 for other errors."""
    if isinstance(error, RuntimeError):  # torch raises it in place of the error of the file
        error = error.__context__
    if isinstance(error, OSError):
        return error.errno or 0
    match = re.search(r"\(os error (\d+)\)", str(error))
    return int(match[1]) if match else 0
