"""Sharded checkpoints: directories of `torch.distributed.checkpoint` (DCP), written atomically.

A directory such as last.ckpt contains

- `__R_0.distcp`: the shard of rank R, with tensors or parts of them.
- `index.pt`, a file of `torch.save`: the content of the checkpoint with its tensors on the meta
  device, the SHA-256 of each shard, and the chunks of each tensor (offsets and sizes in the tensor,
  name of the shard, position and length in the shard). It is written last.
- `.metadata`: the pickle of DCP, with which the tools of torch read the directory. fourfold does
  not read this file, because a pickle can run code.

The name of a tensor is its path in the content, such as "optimizer_states/0/state/3/exp_avg".
"""

import copy
import math
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.storage import WriteResult

from fourfold.atomic_files import disk_errors, replace, sha256, sync
from fourfold.checkpoints.schema import INDEX, MAX_VALUES, parts
from fourfold.core.validation import check_nesting
from fourfold.errors import InputError
from fourfold.hub.directory import load_archive

warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or unini")
# Entries of a checkpoint that consist of weights and optimizer states.
SHARDED = ("state_dict", "current_model_state", "optimizer_states")


class Save:
    """Saving of a sharded checkpoint, which begins at once.

    All ranks of `group` must save the same checkpoint at the same time. A tensor that is no DTensor
    is that of the first rank, and so are all other values.

    Args:
        content: The checkpoint. Its containers are dicts, lists and tuples.
        path: The directory, which is replaced when the new one is complete.
        group: Process group of gloo; None if this process alone has the whole checkpoint.
        then: Function that the first rank calls when the directory is in its place.
        asynchronous: Copy the tensors to the CPU, and write them in another thread.

    Raises:
        DiskError: The disk is full or fails. An earlier directory of that name is kept.
    """

    def __init__(
        self, content: Any, path: Path, group: Any, then: Callable[[], None], asynchronous: bool
    ) -> None:
        tensors: dict[str, Tensor] = {}
        self._writer = _Writer(_map_tensors(content, partial(_to_meta, tensors)), path, then)
        self._future: Future[Any] | None = None
        with self._errors():
            future = (dcp.async_save if asynchronous else dcp.save)(
                tensors,
                storage_writer=self._writer,
                planner=dcp.DefaultSavePlanner(dedup_save_to_lowest_rank=True),
                process_group=group,
                no_dist=group is None,
            )
        self._future = future if isinstance(future, Future) else None

    def wait(self) -> None:
        """Wait until the checkpoint is complete, and raise the error of an asynchronous save."""
        if self._future is not None:
            with self._errors():
                self._future.result()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with disk_errors(self._writer.target), _causes():
                yield
        except BaseException:
            shutil.rmtree(self._writer.path, ignore_errors=True)
            raise


def read(path: Path, *, meta: bool = False) -> Any:
    """Read the content of a sharded checkpoint, and verify the checksums of its shards.

    Args:
        path: The directory.
        meta: Leave the tensors of the entries `SHARDED` on the meta device, for `read_tensors`.

    Raises:
        InputError: A shard is missing, has a wrong checksum, or lacks a part of a tensor. For other
            damage, torch raises many classes.
    """
    index = load_archive(path / INDEX, mmap=False)
    n_bytes = sum(_verify(path, name, digest) for name, digest in index["files"].items())
    for value in index["content"].values():
        check_nesting(value, parts, MAX_VALUES, path)
    metas: dict[str, Any] = {}
    content = _map_tensors(index["content"], metas.setdefault)
    if sum(x.numel() * x.itemsize for x in metas.values()) > n_bytes:
        raise InputError("its tensors are larger than its shards", file=path)
    for name, tensor in metas.items():
        tensor.place = path, name
    read = {name: x for name, x in metas.items() if not (meta and name.split("/")[0] in SHARDED)}
    tensors = {name: torch.zeros(x.shape, dtype=x.dtype) for name, x in read.items()}
    tensors = read_tensors(read, tensors)
    return _map_tensors(content, lambda name, x: tensors.get(name, x))


def read_tensors(stored: Mapping[str, Any], targets: dict[str, Any]) -> dict[str, Any]:
    """Read tensors of a sharded checkpoint into existing tensors, and return these.

    Of a DTensor, only the parts on this rank are read, whatever the number of ranks that saved it.

    Args:
        stored: Tensors on the meta device, in the content that `read` returned.
        targets: The tensors to read into, by the same names.

    Raises:
        InputError: The names or shapes differ, or the checkpoint lacks a part of a tensor.
    """
    path = next((x.place[0] for x in stored.values()), Path())
    if stored.keys() != targets.keys():
        raise InputError("the tensors do not match the model's config", file=path)
    if not stored:
        return targets
    index = load_archive(path / INDEX, mmap=False)
    found, places, tensors = dict[str, Any](), {}, {}
    for key, target in targets.items():
        name = stored[key].place[1]
        chunks = []
        for offsets, sizes, shard, start, length in index["tensors"].get(name, ()):
            inside = all(a + b <= n for a, b, n in zip(offsets, sizes, target.shape, strict=True))
            if shard not in index["files"] or not inside:
                raise InputError(f"must have the shape {tuple(target.shape)}", option=name)
            chunk = dcp_metadata.ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
            places[dcp_metadata.MetadataIndex(name, chunk.offsets)] = SimpleNamespace(
                relative_path=shard, offset=start, length=length, transform_descriptors=None
            )
            chunks.append(chunk)
        if not chunks or sum(math.prod(chunk.sizes) for chunk in chunks) != target.numel():
            raise InputError("must be complete", option=name)
        properties = dcp_metadata.TensorProperties(dtype=target.dtype)
        found[name] = dcp_metadata.TensorStorageMetadata(properties, target.shape, chunks)
        tensors[name] = target
    reader: Any = dcp.FileSystemReader(path)
    metadata = dcp_metadata.Metadata(found, storage_data=places)
    reader.read_metadata = lambda: metadata  # DCP would read its pickle
    with _causes():
        dcp.load(tensors, storage_reader=reader, no_dist=True)
    return targets


class _Writer(dcp.FileSystemWriter):
    """Writer of one checkpoint to a temporary directory beside its place."""

    def __init__(self, content: Any, target: Path, then: Callable[[], None]) -> None:
        super().__init__(target.with_name(f"{target.name}.shards.part"))
        self.content, self.target, self.then = content, target, then

    def storage_meta(self) -> None:
        """Return no information, because DCP would store the path of the temporary directory."""

    def prepare_global_plan(self, plans: Any) -> Any:
        for file in Path(self.path).iterdir():  # of a killed process
            file.unlink()
        return super().prepare_global_plan(plans)

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Write the shard of this rank, and add its checksum to the results."""
        with disk_errors(self.target):
            results = super().write_data(plan, planner).wait()
            for name in {result.storage_data.relative_path for result in results}:
                digest = sha256(Path(self.path) / name)
                results.append(WriteResult(dcp_metadata.MetadataIndex(name), 0, digest))
        future: Any = torch.futures.Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Any, results: Any) -> None:
        """Write the index on the first rank, and move the complete directory to its place."""
        written = list(chain(*results))
        places = {x.index: x.storage_data for x in written if not isinstance(x.storage_data, str)}
        files = {x.index.fqn: x.storage_data for x in written if isinstance(x.storage_data, str)}
        tensors = {
            name: [
                [list(chunk.offsets), list(chunk.sizes), x.relative_path, x.offset, x.length]
                for chunk in stored.chunks
                for x in [places[dcp_metadata.MetadataIndex(name, chunk.offsets)]]
            ]
            for name, stored in metadata.state_dict_metadata.items()
        }
        index = {"content": self.content, "files": files, "tensors": tensors}
        with disk_errors(self.target):
            super().finish(metadata, [[x for x in written if x.index in places]])
            file = Path(self.path) / INDEX
            with file.open("wb") as stream:
                torch.save(index, stream)
            sync(file)
            sync(file.parent)
            replace(file.parent, self.target)
        self.then()


def _map_tensors(value: Any, function: Callable[[str, Any], Any], name: str = "") -> Any:
    """Return a copy of nested containers in which a function of name and value maps each tensor."""
    if isinstance(value, Tensor):
        return function(name, value)
    if isinstance(value, Mapping):
        new: Any = copy.copy(value)
        for key in value:
            new[key] = _map_tensors(value[key], function, f"{name}/{key}".lstrip("/"))
        return new
    if isinstance(value, list | tuple):
        return type(value)(_map_tensors(x, function, f"{name}/{i}") for i, x in enumerate(value))
    return value


def _to_meta(tensors: dict[str, Tensor], name: str, tensor: Tensor) -> Tensor:
    """Add a tensor to a dictionary by its name, and return its shape as a tensor on `meta`."""
    if name in tensors:
        raise InputError("must be the name of one tensor", option=name)
    tensors[name] = tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _verify(path: Path, shard: str, digest: str) -> int:
    """Check the checksum of a shard in a directory, and return the size of the shard in bytes."""
    file = path / shard
    if Path(shard).name != shard or not file.is_file():  # never a file of another directory
        raise InputError(f"{shard[:80]} is missing", file=path)
    if sha256(file) != digest:
        raise InputError(f"checksum of {shard} is wrong", file=path)
    return file.stat().st_size


@contextmanager
def _causes() -> Iterator[None]:
    """Context in which the error of a rank replaces that of DCP, which is no Exception."""
    try:
        yield
    except CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from error
