"""Digests of the tensors and of the other values in a checkpoint, compared after loading.

The checksums in the zip archive of a checkpoint cover the bytes in the file. They cover neither the
archive's list of files nor the reading by torch: for an entry that is marked as a directory, torch
returns a tensor of arbitrary content.
"""

import zlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

KEY = "fourfold_digests"  # of the digests in a checkpoint
WORD = 8  # bytes
PLAIN = (str, bytes, int, float, complex, torch.dtype, torch.device)


def compute_digests(content: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the digests of a checkpoint.

    The digest of a tensor is the sum of the 64-bit words of its storage, modulo 2^64, which every
    flipped bit changes and which is much faster than writing the file. The digest of all other
    values, and of the types and shapes of the tensors, is a CRC-32.

    Args:
        content: The checkpoint, which consists of nested dictionaries, lists and tuples.

    Returns:
        A dictionary with two keys. `tensors` is a dictionary from the path of each tensor, such as
        "state_dict.model.weight", to its digest; `values` is the digest of all other values.
    """
    tensors: dict[str, int] = {}
    # Storages and containers by id, with their digests, since several values may share them.
    known: dict[int, tuple[Any, int]] = {}

    def digest(value: Any, path: str) -> int:
        if isinstance(value, Tensor):
            text = f"{value.dtype} {tuple(value.shape)} {value.requires_grad}"
            if _has_storage(value):
                storage = value.untyped_storage()
                if storage._cdata not in known:
                    known[storage._cdata] = storage, _sum_of_words(storage)
                tensors[path] = known[storage._cdata][1]
                text += f" {value.stride()} {value.storage_offset()} {storage.nbytes()}"
            return _checksum(text)
        if not isinstance(value, Mapping | list | tuple):
            return _checksum(_text(value))
        if id(value) not in known:
            pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
            inner = [(repr(key), digest(x, f"{path}.{key}".lstrip("."))) for key, x in pairs]
            known[id(value)] = value, _checksum(f"{type(value).__name__} {inner}")
        return known[id(value)][1]

    return {"values": digest(content, ""), "tensors": tensors}


def find_mismatch(content: Mapping[str, Any], digests: Any) -> str:
    """Compare a checkpoint with the digests that were saved with it.

    Args:
        content: The checkpoint, without its digests.
        digests: Value of `compute_digests` for the checkpoint that was saved.

    Returns:
        The path of the first tensor that differs, "values" if another value differs, and "" if the
        checkpoint is equal to the one that was saved.
    """
    found = compute_digests(content)
    for path, digest in found["tensors"].items():
        if digests["tensors"].get(path) != digest:
            return path
    return "" if digests == found else "values"


def _text(value: Any) -> str:
    """Return a text that is equal for equal values, and the same in another process.

    Of other than plain values, only the class is known. The text of an object may hold its address.
    """
    if isinstance(value, set):
        return f"set {sorted(map(repr, value))}"
    is_plain = value is None or isinstance(value, PLAIN)
    return repr(value) if is_plain else type(value).__qualname__


def _checksum(text: str) -> int:
    return zlib.crc32(text.encode(errors="backslashreplace"))


def _has_storage(tensor: Tensor) -> bool:
    """Return False for sparse tensors, tensors without data, and subclasses that wrap tensors."""
    is_plain = type(tensor) in (Tensor, nn.Parameter, nn.Buffer)
    return is_plain and tensor.layout == torch.strided and not tensor.is_meta


def _sum_of_words(storage: torch.UntypedStorage) -> int:
    """Return the sum of the 64-bit words of a storage; zeros complete the last word."""
    data = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    n_whole = len(data) // WORD * WORD
    rest = bytes(data[n_whole:].tolist())
    return int(data[:n_whole].view(torch.int64).sum()) + int.from_bytes(rest, "little")
