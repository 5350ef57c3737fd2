"""Digests of the tensors and of the other values in a checkpoint, compared after loading.

The checksums in the zip archive of a checkpoint cover the bytes of its entries. They cover neither
the archive's list of entries nor the reading by torch. For an entry that is marked as a directory,
torch returns a tensor of arbitrary content.
"""

import zlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

KEY = "fourfold_digests"  # key of the digests in a checkpoint
WORD = 8  # bytes of each integer in the sum over a storage
# Types whose `repr` depends on nothing but the value.
PLAIN = (str, bytes, int, float, complex, torch.dtype, torch.device)


def compute_digests(content: Mapping[str, Any]) -> dict[str, Any]:
    """Compute the digests of a checkpoint.

    The digest of a tensor is the sum of the 64-bit words of its storage, modulo 2^64. Every flipped
    bit changes this sum, and computing the sum is much faster than writing the file. All other
    values, and the dtypes and shapes of the tensors, have one common digest, a CRC-32.

    Args:
        content: The checkpoint, which consists of nested dictionaries, lists and tuples.

    Returns:
        A dictionary with two keys. `tensors` is a dictionary from the path of each tensor, such as
        "state_dict.model.weight", to its digest (int). `values` is the digest (int) of all other
        values.
    """
    tensors: dict[str, int] = {}
    # Pairs (storage or container, its digest) by id, since several values may share one of these.
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
        content: The checkpoint as it was read, without its digests.
        digests: Result of `compute_digests` that was stored in the checkpoint when it was saved.

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
    """Return the text that stands for a value of a checkpoint in the CRC-32 of all its values.

    The text is the same in every process. It is the `repr` of None and of a value of a type in
    `PLAIN`, and the sorted `repr`s of the items of a set. For any other object the text is the name
    of its class, because the `repr` of an object may contain its memory address.

    Args:
        value: Value that is neither a tensor nor a dictionary, list or tuple.
    """
    if isinstance(value, set):
        return f"set {sorted(map(repr, value))}"
    is_plain = value is None or isinstance(value, PLAIN)
    return repr(value) if is_plain else type(value).__qualname__


def _checksum(text: str) -> int:
    return zlib.crc32(text.encode(errors="backslashreplace"))


def _has_storage(tensor: Tensor) -> bool:
    """Return True if the elements of a tensor are in a storage that can be read.

    The result is False for sparse tensors, for tensors on the meta device, and for all subclasses
    except `nn.Parameter` and `nn.Buffer`.
    """
    is_plain = type(tensor) in (Tensor, nn.Parameter, nn.Buffer)
    return is_plain and tensor.layout == torch.strided and not tensor.is_meta


def _sum_of_words(storage: torch.UntypedStorage) -> int:
    """Return the sum of the 64-bit words of a storage, whose last word is padded with zero bytes.

    The sum of the complete words is an int64 sum, which is taken modulo 2^64.
    """
    data = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    n_whole = len(data) // WORD * WORD
    rest = bytes(data[n_whole:].tolist())
    return int(data[:n_whole].view(torch.int64).sum()) + int.from_bytes(rest, "little")
