"""Files of weights and model directories: safe reading, bounds of model sizes, writing."""

import json
import math
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fourfold.core.validation import check_stored, count_stored
from fourfold.errors import InputError, errors_in
from fourfold.json_files import read_json
from fourfold.layers.base_model import Model, on_meta, parameters_on_meta
from fourfold.layers.generation_defaults import GenerationDefaults
from fourfold.tokenization.tokenizer import Tokenizer

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
PICKLE_FILE = "pytorch_model.bin"
# Files that are downloaded from the Hugging Face hub. Weights of other frameworks are left out.
DOWNLOAD_PATTERNS = ("*.json", "*.safetensors", "*.txt", "*.model", "*.spm", PICKLE_FILE)
# Maximum number of elements (256 MiB in fp32) of tables that a model computes, such as sinusoidal
# positions, and that are in no file. A model with more parameters may have as many elements.
MIN_TABLE_LIMIT = 1 << 26
_LAYER_COUNTS = ("n_layers", "n_decoder_layers", "lstm_layers", "image_n_layers")
# The second slash is absent in the text of a `Path`.
HUB_NAME = re.compile(r"(hf://?)?([\w.-]+/[\w.-]+)")
ZIP_START = b"PK\x03\x04"  # first bytes of a file for which torch reads a zip archive
# First bytes of files that torch wrote: a zip archive, or pickles before version 1.6.
_TORCH_STARTS = (ZIP_START, b"\x80\x02\x8a\n")
LLAMA2C = "llama2.c"  # key of the numbers of a file of this library
DOS_DIRECTORY = 0x10  # bit of an entry's external attributes that marks a directory
ModelT = TypeVar("ModelT", bound=Model)
Tensors = Mapping[str, Tensor]


def set_attributes(
    model: ModelT,
    path: str | Path,
    tokenizer: str | None,
    artifacts: Mapping[str, Any],
    defaults: GenerationDefaults,
) -> ModelT:
    """Set the attributes of a model that come with its weights, and return the model.

    Args:
        model: The model.
        path: File or directory of the weights, for a warning.
        tokenizer: The tokenizer as JSON; None if none is stored.
        artifacts: Values that inference needs, such as class names, by name.
        defaults: Stored defaults of generation. Special tokens that are None are taken from the
            tokenizer, and the first token of a decoder from the config of the model.
    """
    model.tokenizer = Tokenizer.from_str(tokenizer) if tokenizer else None
    model.artifacts = dict(artifacts)
    defaults = within_vocabulary(defaults, model, path)
    names = ("bos_id", "eos_id", "pad_id")
    values = {x: getattr(model.tokenizer, x, None) for x in names if getattr(defaults, x) is None}
    start = getattr(model.config, "decoder_start_token_id", None)
    values |= {} if start is None else {"bos_id": start}
    model.generation_defaults = replace(defaults, **values)
    return model


def within_vocabulary(
    defaults: GenerationDefaults, model: Any, path: str | Path
) -> GenerationDefaults:
    """Return generation defaults without tokens outside the vocabulary, which a warning lists.

    The defaults of a model that does not generate tokens are returned unchanged.
    """
    size = model.config.vocab_size if getattr(model, "can_generate", False) else math.inf

    def known(name: str, token: int | None) -> int | None:
        if 0 <= (token or 0) < size:
            return token
        # Only encoder-decoders use the first token.
        if name != "decoder_start_token_id" or hasattr(model.config, name):
            message = f"{name} {token} is outside the vocabulary of {size}, ignored"
            warnings.warn(f"{path}: {message}", stacklevel=2)
        return None

    first = known("decoder_start_token_id", defaults.bos_id)
    forced = known("forced_bos_token_id", defaults.forced_bos_token_id)
    kept = [token for token in defaults.end_ids if 0 <= token < size]
    if unknown := [str(token) for token in defaults.end_ids if token not in kept]:
        message = f"end tokens outside the vocabulary of {size}, ignored: {', '.join(unknown)}"
        warnings.warn(f"{path}: {message}", stacklevel=1)
    ends: Any = {"eos_id": kept[0] if kept else None, "stop_ids": kept[1:] or None}
    return replace(defaults, bos_id=first, forced_bos_token_id=forced, **ends)


def resolve_path(path: str | Path) -> Path:
    """Return the local path of a model, which is downloaded first if `path` is `hf://owner/name`.

    Nothing is requested from the Hugging Face hub for any other path.

    Raises:
        InputError: There is no such path, or the model cannot be downloaded.
    """
    name = HUB_NAME.fullmatch(str(path))
    if name is None or name[1] is None:
        if not os.path.exists(path):  # unlike Path.exists, False for a name that is too long
            message = "there is no such checkpoint, run directory or directory of a model"
            hint = f"; did you mean hf://{name[2]}?" if name else ""
            message += f" (a model on the Hugging Face hub is written hf://owner/name{hint})"
            raise InputError(message, file=path)
        return Path(path)
    from huggingface_hub import snapshot_download  # slow to import

    try:
        return Path(snapshot_download(name[2], allow_patterns=list(DOWNLOAD_PATTERNS)))
    except Exception as error:  # huggingface_hub raises many classes for network and permissions
        first_line = str(error).strip().split("\n")[0]
        message = f"it cannot be downloaded from the Hugging Face hub: {first_line}"
        raise InputError(message, file=f"hf://{name[2]}") from error


def is_model_directory(path: Path) -> bool:
    """Return True if `path` contains a config.json."""
    return os.path.lexists(path / CONFIG_FILE)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a directory to the CPU, by name.

    The weights are one safetensors file, several safetensors files (shards) with an index, or a
    pickled state dict.

    Raises:
        InputError: There are no weights, a file is corrupted or missing, or a pickle contains
            objects other than tensors.
    """
    if os.path.lexists(path / WEIGHTS_FILE):
        return read_safetensors(path / WEIGHTS_FILE)
    if os.path.lexists(path / PICKLE_FILE) and not os.path.lexists(path / INDEX_FILE):
        return read_pickle(path / PICKLE_FILE)
    shards = read_json(path / INDEX_FILE, optional=True).get("weight_map")
    if shards is None:
        raise InputError(f"contains neither {WEIGHTS_FILE} nor {PICKLE_FILE}", file=path)
    tensors: dict[str, Tensor] = {}
    for shard in sorted(set(shards.values())):
        if Path(shard).name != shard:  # an index could name any file of the machine
            message = f"must name files in the directory of the index, got {shard[:80]!r}"
            raise InputError(message, option="weight_map", file=path / INDEX_FILE)
        tensors |= read_safetensors(path / shard)
    return tensors


def check_layers(config: Any, tensors: Mapping[str, Any]) -> None:
    """Check that a config, and each config in it, has at most as many layers as there are tensors.

    The check precedes the construction of the model, which takes time for each layer.
    """
    for name, value in vars(config).items():
        if is_dataclass(value):
            check_layers(value, tensors)
        elif name in _LAYER_COUNTS and isinstance(value, int) and value > len(tensors):
            message = f"must be at most the number of tensors in the weights ({len(tensors)})"
            raise InputError(f"{message}, got {value}", option=name)


def build_on_meta(build: Callable[[], ModelT], config: Any, tensors: Tensors) -> ModelT:
    """Build a model on the meta device, and check its size against the size of the weights.

    Tensors on the meta device need no memory, so a config with very large sizes does no harm.

    Args:
        build: Function without arguments that builds the model.
        config: Config of the model.
        tensors: Tensors of the weights by name; the names may be those of another library.

    Raises:
        InputError: The config has more layers than there are tensors, describes tensors with too
            many elements for torch or twice as many elements as the storages of the weights, or
            needs computed tables that are larger than the weights.
    """
    check_layers(config, tensors)
    try:
        with on_meta():
            model = build()
    except RuntimeError as error:  # torch cannot count so many elements
        raise InputError("describes a model that is too large", option="the config") from error
    stored = model.state_dict()
    needed, found = (count_stored(state.values()) for state in (stored, tensors))
    if needed > 2 * found:  # if less is missing, later messages name the tensors
        message = f"describes a model of {needed} numbers, but the weights have {found}"
        raise InputError(message, option="the config")
    n_computed = sum(x.numel() for name, x in model.named_buffers() if name not in stored)
    limit = max(MIN_TABLE_LIMIT, found)
    if n_computed > limit:
        message = f"describes computed tables of {n_computed} numbers, at most {limit} are allowed"
        raise InputError(f"{message} with these weights", option="the config")
    return model


def copy_tensor(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Return a contiguous copy, in memory, of a tensor that shares the memory of a file.

    Floating-point numbers are converted to `dtype`, unless it is None.
    """
    # Without a copy, the weights would be lost if somebody changes the file that holds them.
    kind = dtype if dtype is not None and x.is_floating_point() else x.dtype
    return x.detach().to(kind, copy=True, memory_format=torch.contiguous_format)


def build_with(
    build: Callable[[], ModelT], meta: ModelT, tensors: Tensors, dtype: torch.dtype | None
) -> ModelT:
    """Build a model in eval mode whose parameters are the given tensors, which are not copied.

    Args:
        build: Function without arguments that builds the model.
        meta: The same model on the meta device, from `build_on_meta`.
        tensors: State dict, in the data type of the model (see `copy_tensor`).
        dtype: Data type of the computed tables; None means fp32.
    """
    # A training reads its sources without a data type. It initializes its own model afterwards, so
    # the random numbers that were drawn for a source are drawn still, for equal results.
    model = meta
    if dtype is None or next(meta.buffers(), None) is not None:
        with parameters_on_meta() if dtype else torch.device("cpu"):
            model = build()  # computes tables, such as sinusoidal positions
    model.load_state_dict(tensors, assign=True)
    return model.to(dtype=dtype or torch.float32).eval()


def tensor_shape(tensors: Tensors, name: str, ndim: int) -> tuple[int, ...]:
    """Return the shape of a tensor that must exist and have `ndim` dimensions.

    Raises:
        InputError: There is no such tensor, or it has another number of dimensions.
    """
    if name not in tensors or tensors[name].ndim != ndim:
        raise InputError(f"have no tensor {name} of {ndim} dimensions", option="weights")
    return tuple(tensors[name].shape)


def write_directory(path: Path, config: Mapping[str, Any], tensors: Tensors) -> None:
    """Write config.json and model.safetensors to a directory, which is created if necessary."""
    path.mkdir(parents=True, exist_ok=True)
    # transformers requires this entry of the metadata.
    save_file(dict(tensors), path / WEIGHTS_FILE, metadata={"format": "pt"})
    write_json(path / CONFIG_FILE, config)


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object to a file, indented and with sorted keys, as transformers does."""
    text = json.dumps(content, indent=2, sort_keys=True)  # ASCII: a label may be no Unicode text
    file.write_text(text + "\n", encoding="utf-8")


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of one safetensors file by name; they share the memory of the file.

    Raises:
        InputError: The file is missing or corrupted.
    """
    if not os.path.isfile(path):
        raise InputError("this file of the weights is missing", file=path)
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"corrupted or incomplete ({error})", file=path) from error


def read_llama2c(path: Path) -> dict[str, Tensor] | None:
    """Return the fp32 numbers of a .bin file of llama2.c, by `LLAMA2C`; None for a file of torch.

    Raises:
        InputError: The file is too short.
    """
    with path.open("rb") as file:
        if file.read(len(ZIP_START)) in _TORCH_STARTS:
            return None
    size = path.stat().st_size
    if size % 4 or size < 32:  # seven int32 numbers, then the weights
        raise InputError(f"{size} bytes are neither weights of torch nor of llama2.c", file=path)
    return {LLAMA2C: torch.from_file(str(path), size=size // 4)}


def read_pickle(path: Path) -> dict[str, Tensor]:
    """Read a state dict, a dict of tensors on the CPU, that was written by `torch.save`.

    Raises:
        InputError: The file is corrupted, or contains objects other than tensors. Such objects
            could run code.
    """
    try:
        content = load_archive(path, mmap=True)
    except InputError as error:
        raise InputError(f"corrupted: {error.message}", file=path) from error
    except Exception as error:  # torch raises many classes for corrupted or malicious files
        message = "corrupted, or a pickle with objects other than tensors, which could run code"
        raise InputError(message, file=path) from error
    if not isinstance(content, dict) or not all(isinstance(x, Tensor) for x in content.values()):
        raise InputError("must contain a dictionary of tensors", file=path)
    with errors_in(path):
        check_stored(content)
    return content


def load_archive(path: Path, *, mmap: bool) -> Any:
    """Read a file of `torch.save` with `weights_only=True`, after a check of its zip archive.

    `torch.load` verifies neither checksums nor the sizes of compressed entries, and of an entry
    that is marked as a directory it returns arbitrary numbers. Files in torch's older format, which
    is no zip archive, are not checked.

    Args:
        path: The file.
        mmap: The tensors share the memory of the file, so that only those that are used are read.

    Raises:
        InputError: An entry is compressed, is marked as a directory, overlaps another entry or has
            a wrong checksum.
    """
    with path.open("rb") as file:
        is_zip = file.read(len(ZIP_START)) == ZIP_START
    if is_zip:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            packed = (x for x in entries if x.compress_type or x.file_size != x.compress_size)
            folders = (x for x in entries if x.is_dir() or x.external_attr & DOS_DIRECTORY)
            # torch does not compress. A small compressed entry could unpack to a very large one.
            if entry := next(packed, None):
                problem = f"{entry.filename[:80]} is compressed"
            elif entry := next(folders, None):
                problem = f"{entry.filename[:80]} is a directory"
            elif sum(x.file_size for x in entries) > path.stat().st_size:
                problem = "entries overlap"
            else:
                member = archive.testzip()
                problem = f"checksum of {member[:80]} is wrong" if member else ""
        if problem:
            raise InputError(problem, option="the archive")
    return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip and mmap)
