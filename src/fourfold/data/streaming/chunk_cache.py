"""Files from elsewhere in a folder that stays small: what a data set needs that outgrows a disk."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock  # torch brings it

from fourfold.core.errors import InputError
from fourfold.files import whole

_LOCK = "cache.lock"
_COPY = re.compile(r"[0-9a-f]{16}-")


class ChunkCache:
    """Copies of remote files, shared by all processes of a machine, never more than `limit` bytes.

    Who misses a file holds the lock while it makes room and fetches, so there are no two copies and
    the bound holds at every moment. The file that was not opened for longest makes room; who still
    reads it keeps what it opened, since a deleted file lasts until it is closed.

    Args:
        folder: where the copies live.
        limit: bytes.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit

    def open(self, address: str, size: int, version: str = "") -> BinaryIO:
        """The file at `address`, fetched if it is not here.

        Args:
            address: of the file.
            size: its bytes.
            version: what changes when others may stand at the same address.

        Raises:
            InputError: it cannot be fetched, or has not `size` bytes.
        """
        digest = hashlib.blake2b(f"{address} {version}".encode(), digest_size=8).hexdigest()
        file = self.folder / f"{digest}-{address.rpartition('/')[2]}"
        while True:
            try:
                found = file.open("rb")
            except FileNotFoundError:
                self._bring(address, size, file)
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.utime(file)
                return found

    def _bring(self, address: str, size: int, file: Path) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / _LOCK):
            if file.exists():
                return  # another process was first
            self._make_room(size)
            with whole(file) as part:  # or others would open half of it
                fetch(address, part, size)
                if (got := part.stat().st_size) != size:
                    raise InputError(f"{address} has {got} bytes, but its index says {size}.")

    def _make_room(self, size: int) -> None:
        """Deletes the oldest until `size` bytes fit, and what a killed process left half done."""
        kept = []
        for file in self.folder.iterdir():
            if not _COPY.match(file.name):
                continue  # not ours
            if file.suffix == ".bin":
                kept.append((file.stat(), file))
            else:
                file.unlink()
        kept.sort(key=lambda found: found[0].st_mtime_ns)
        total = sum(status.st_size for status, _ in kept)
        for status, file in kept:
            if total + size <= self.limit:
                return
            file.unlink()
            total -= status.st_size


def fetch(address: str, file: Path, size: int = 0) -> None:
    """Copies what is at `address` (s3://, gs://, azure://, hf://, local:) by litdata's transport.

    Args:
        address: of a file.
        file: where to; not there yet.
        size: bytes, where known: large files come in parts at once.

    Raises:
        InputError: litdata is not installed, or cannot fetch it.
    """
    try:
        from litdata.streaming.downloader import get_downloader
    except ImportError as error:
        raise InputError(
            f"Fetching {address} needs the package `litdata`: pip install -e '.[stream]'."
        ) from error
    folder, _, name = address.rpartition("/")
    try:
        # One for each file: what it holds must not be carried into forked workers.
        described = [{"filename": name, "chunk_bytes": size}]
        get_downloader(folder, str(file.parent), described).download_file(address, str(file))
    except Exception as error:  # each store has errors of its own
        reason = str(error).strip().split("\n")[0]
        raise InputError(f"{address} cannot be fetched: {reason}") from error
    if not file.exists():
        raise InputError(f"{address} cannot be fetched: it is not there.")
