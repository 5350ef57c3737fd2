"""ChunkCache: local copies of remote chunk files, bounded in size and shared by processes."""

import contextlib
import hashlib
import os
import re
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock  # a dependency of torch

from fourfold.atomic_files import atomic_path
from fourfold.errors import InputError

_LOCK = "cache.lock"
_COPY = re.compile(r"[0-9a-f]{16}-")


class ChunkCache:
    """Cache of remote files that all processes of a machine share.

    A process that needs a missing file holds a lock while the process evicts other files and
    downloads the missing file. Therefore no file is downloaded twice at the same time, and the
    cache never exceeds its limit. The least recently opened file is evicted first. A process that
    still reads an evicted file keeps access, since the operating system deletes a file only after
    every process has closed the file.

    Args:
        folder: Folder of the copies.
        limit: Maximum size of the copies, in bytes.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit

    def open(self, address: str, size: int, version: str = "") -> BinaryIO:
        """Open a remote file, which is downloaded if the cache does not have it.

        Args:
            address: Address of the file.
            size: Size of the file in bytes.
            version: Version of the file; another version at the same address is another file.

        Raises:
            InputError: If the file cannot be downloaded, or has another size.
        """
        digest = hashlib.blake2b(f"{address} {version}".encode(), digest_size=8).hexdigest()
        copy = self.folder / f"{digest}-{address.rpartition('/')[2]}"
        while True:  # another process may evict the copy before it is opened
            try:
                opened = copy.open("rb")
            except FileNotFoundError:
                self._download(address, size, copy)
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.utime(copy)
                return opened

    def _download(self, address: str, size: int, copy: Path) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / _LOCK):
            if copy.exists():
                return  # another process downloaded it while this one waited for the lock
            self._evict(size)
            with atomic_path(copy) as partial:
                fetch(address, partial, size)
                if (actual := partial.stat().st_size) != size:
                    message = f"the file has {actual} bytes, but its index lists {size}"
                    raise InputError(message, file=address)

    def _evict(self, size: int) -> None:
        """Delete partial copies of killed processes, and the oldest copies until `size` fits."""
        copies = []
        for file in self.folder.iterdir():
            if not _COPY.match(file.name):
                continue  # not a file of this cache
            if file.suffix == ".bin":
                copies.append((file.stat(), file))
            else:
                file.unlink()
        copies.sort(key=lambda copy: copy[0].st_mtime_ns)
        total = sum(status.st_size for status, _ in copies)
        for status, file in copies:
            if total + size <= self.limit:
                return
            file.unlink()
            total -= status.st_size


def fetch(address: str, file: Path, size: int = 0) -> None:
    """Download a file (s3://, gs://, azure://, hf://, local:) with litdata's downloaders.

    Args:
        address: Address of the remote file.
        file: Path of the copy, which must not exist yet.
        size: Size in bytes if it is known; large files are downloaded in parallel parts.

    Raises:
        InputError: If litdata is not installed, or if the download fails.
    """
    try:
        from litdata.streaming.downloader import get_downloader
    except ImportError as error:
        message = "downloading needs litdata: pip install 'fourfold[stream]'"
        raise InputError(message, file=address) from error
    folder, _, name = address.rpartition("/")
    try:
        # A new downloader for each file, because forked workers cannot share its connections.
        described = [{"filename": name, "chunk_bytes": size}]
        get_downloader(folder, str(file.parent), described).download_file(address, str(file))
    except Exception as error:  # every store raises its own exceptions
        reason = str(error).strip().split("\n")[0]
        raise InputError(f"the file cannot be downloaded: {reason}", file=address) from error
    if not file.exists():
        raise InputError("there is no such file", file=address)
