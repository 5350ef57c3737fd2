"""Cache of large arrays on the disk, which all processes of a machine map into their memory."""

import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock  # a dependency of torch

from fourfold.atomic_files import disk_errors, sync
from fourfold.errors import InputError

_FORMAT = "fourfold arrays 1"
_OPTIONS = "set another data.cache_dir, or data.features.cache"
_INDEX = "index.json"
_READ_BYTES = 1 << 20
Arrays = dict[str, np.ndarray]


def default_cache_dir() -> Path:
    """Return $FOURFOLD_CACHE, or by default the folder "fourfold" in the user's cache folder."""
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("FOURFOLD_CACHE") or Path(user) / "fourfold").expanduser()


def digest(*parts: Any) -> str:
    """Return a hash of values with a `repr`, 32 hexadecimal digits."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def cached_arrays(folder: Path | None, key: str, produce: Callable[[], Iterable[Arrays]]) -> Arrays:
    """Return one-dimensional arrays from the cache; if they are missing, produce and store them.

    The first process that asks for a key writes the arrays, and others wait for it. They are in a
    folder of their own, one file for each array, beside the file index.json with their types,
    lengths and CRC-32 checksums. The folder gets its name after all files are complete. The first
    process of a machine verifies the checksums, and all processes verify the sizes. Damaged arrays
    are produced again.

    Args:
        folder: Folder of the cache; None keeps the arrays in memory.
        key: Name of the arrays, a hash of everything on which they depend.
        produce: Function that yields consecutive parts of the arrays, dictionaries from the name of
            an array to its next values. All parts have the same names and types.

    Returns:
        The arrays by name, read-only if they are mapped.

    Raises:
        InputError: If the folder cannot be written, or contains other files under `key`.
        DiskError: If the disk is full or fails.

    Example:
        >>> parts = [{"a": np.array([1, 2])}, {"a": np.array([3])}]
        >>> cached_arrays(None, "key", lambda: parts)["a"].tolist()
        [1, 2, 3]
    """
    if folder is None:
        parts = list(produce())
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    path = folder / key
    lock = FileLock(f"{path}.lock")
    try:
        with disk_errors(path):
            folder.mkdir(parents=True, exist_ok=True)
            lock.acquire()
    except (PermissionError, FileExistsError) as error:
        message = f"the cache must be a folder that can be written: {error.strerror}; {_OPTIONS}"
        raise InputError(message, file=folder) from error
    try:
        if (arrays := _open(path)) is None:
            with disk_errors(path):
                _write(path, produce())
            arrays = _open(path)
            assert arrays is not None
        return arrays
    finally:
        lock.release()


def _write(path: Path, parts: Iterable[Arrays]) -> None:
    """Write the arrays to a temporary folder, and rename it to `path`."""
    temporary = path.with_name(f"{path.name}.part")
    shutil.rmtree(temporary, ignore_errors=True)  # left by a killed process
    temporary.mkdir()
    index: dict[str, dict[str, Any]] = {}
    try:
        for part in parts:
            for name, array in part.items():
                entry = index.setdefault(name, {"dtype": str(array.dtype), "bytes": 0, "crc": 0})
                assert entry["dtype"] == str(array.dtype)
                data = np.ascontiguousarray(array).data.cast("B") if array.size else b""
                with (temporary / f"{name}.bin").open("ab") as file:
                    file.write(data)
                entry["bytes"] += len(data)
                entry["crc"] = zlib.crc32(data, entry["crc"])
        crc = zlib.crc32(json.dumps(index).encode())
        text = json.dumps({"format": _FORMAT, "crc": crc, "arrays": index})
        (temporary / _INDEX).write_text(text)
        for file_path in (*temporary.iterdir(), temporary):
            sync(file_path)
        shutil.rmtree(path, ignore_errors=True)  # damaged
        temporary.rename(path)
        sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _open(path: Path) -> Arrays | None:
    """Map the arrays in the folder `path`; None if there are none, or if they are damaged."""
    if not os.path.lexists(path):
        return None
    names = {file.name for file in path.iterdir()} if path.is_dir() else {""}
    if path.is_symlink() or not all(name == _INDEX or name.endswith(".bin") for name in names):
        raise InputError(f"these are not arrays of fourfold: remove them, or {_OPTIONS}", file=path)
    with suppress(OSError, ValueError, LookupError, TypeError):
        index = json.loads((path / _INDEX).read_text())
        entries = index["arrays"]
        if index["format"] == _FORMAT and index["crc"] == zlib.crc32(json.dumps(entries).encode()):
            return {name: _map(path / f"{name}.bin", entry) for name, entry in entries.items()}
    return None


def _map(file: Path, entry: dict[str, Any]) -> np.ndarray:
    """Map one array; a ValueError says that its file differs from the entry in the index."""
    if file.stat().st_size != entry["bytes"]:
        raise ValueError(f"{file} has another size")
    if os.environ.get("LOCAL_RANK", "0") == "0":
        crc = 0
        with file.open("rb") as stream:
            while data := stream.read(_READ_BYTES):
                crc = zlib.crc32(data, crc)
        if crc != entry["crc"]:
            raise ValueError(f"{file} has another checksum")
    dtype = np.dtype(entry["dtype"])
    if not entry["bytes"]:
        return np.zeros(0, dtype)  # an empty file cannot be mapped
    return np.memmap(file, dtype, mode="r").view(np.ndarray)
