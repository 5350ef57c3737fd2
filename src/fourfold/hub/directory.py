"""Model directories of transformers and timm: download, config.json and weights."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fourfold.errors import InputError
from fourfold.text_files import parse_json, read_text

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
PICKLE_FILE = "pytorch_model.bin"
# Files that are downloaded from the Hugging Face hub; weights of other frameworks are not.
DOWNLOAD_PATTERNS = ("*.json", "*.safetensors", "*.txt", "*.model", "*.spm", PICKLE_FILE)
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def resolve_path(path: str | Path) -> Path:
    """Return the local path of a model, which is downloaded if `path` is a Hugging Face hub name.

    Args:
        path: A local path; or, if no such path exists, the name of a model on the Hugging Face hub,
            such as `openai-community/gpt2`.

    Raises:
        InputError: The model cannot be downloaded.
    """
    local = Path(path)
    if local.exists() or not HUB_NAME.fullmatch(str(path)):
        return local
    from huggingface_hub import snapshot_download  # slow to import

    try:
        return Path(snapshot_download(str(path), allow_patterns=list(DOWNLOAD_PATTERNS)))
    except Exception as error:  # huggingface_hub raises many classes for network and permissions
        first_line = str(error).strip().split("\n")[0]
        raise InputError(
            f"no such path, and it cannot be downloaded from the Hugging Face hub: {first_line}",
            file=path,
        ) from error


def is_model_directory(path: Path) -> bool:
    """Return True if `path` contains a config.json."""
    return (path / CONFIG_FILE).is_file()


def read_config(path: Path) -> dict[str, Any]:
    """Read the config.json of a directory.

    Raises:
        InputError: config.json is missing or not a JSON object.
    """
    return read_json(path / CONFIG_FILE)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a directory to the CPU, by name.

    The weights are one safetensors file, several safetensors files (shards) with an index, or a
    pickled state dict.

    Raises:
        InputError: There are no weights, a file is corrupted or missing, or a pickle contains
            objects other than tensors.
    """
    if (path / WEIGHTS_FILE).is_file():
        return read_safetensors(path / WEIGHTS_FILE)
    if (path / PICKLE_FILE).is_file() and not (path / INDEX_FILE).is_file():
        return read_pickle(path / PICKLE_FILE)
    if not (path / INDEX_FILE).is_file():
        raise InputError(f"contains neither {WEIGHTS_FILE} nor {PICKLE_FILE}", file=path)
    shards = read_json(path / INDEX_FILE).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise InputError(
            "must map tensor names to file names", option="weight_map", file=path / INDEX_FILE
        )
    tensors: dict[str, Tensor] = {}
    for shard in sorted(set(shards.values())):
        tensors |= read_safetensors(path / shard)
    return tensors


def common_dtype(tensors: Mapping[str, Tensor]) -> torch.dtype:
    """Return the data type that all floating-point tensors have; float32 if they differ."""
    dtypes = {x.dtype for x in tensors.values() if x.is_floating_point()}
    return dtypes.pop() if len(dtypes) == 1 else torch.float32


def tensor_shape(tensors: Mapping[str, Tensor], name: str, ndim: int, file: str) -> tuple[int, ...]:
    """Return the shape of a tensor that must exist and have `ndim` dimensions.

    Args:
        tensors: Tensors by name.
        name: Name of the tensor.
        ndim: Required number of dimensions.
        file: Path of the checkpoint, for the error message.

    Raises:
        InputError: There is no such tensor, or it has another number of dimensions.
    """
    if name not in tensors or tensors[name].ndim != ndim:
        raise InputError(f"no tensor {name} of {ndim} dimensions", file=file)
    return tuple(tensors[name].shape)


def write_directory(path: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write config.json and model.safetensors to a directory, which is created if necessary.

    Args:
        path: The directory.
        config: Content of config.json.
        tensors: Tensors by their names in the library that will read the directory.
    """
    path.mkdir(parents=True, exist_ok=True)
    text = json.dumps(dict(config), indent=2, sort_keys=True, ensure_ascii=False)
    # transformers requires this entry of the metadata.
    save_file(dict(tensors), path / WEIGHTS_FILE, metadata={"format": "pt"})
    (path / CONFIG_FILE).write_text(text + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file.

    Raises:
        InputError: The file is missing or not a JSON object.
    """
    content = parse_json(read_text(str(path)), str(path))
    if not isinstance(content, dict):
        raise InputError(f"must be a JSON object, got {type(content).__name__}", file=path)
    return content


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of one safetensors file.

    Raises:
        InputError: The file is missing or corrupted.
    """
    if not path.is_file():
        raise InputError("this file of the weights is missing", file=path)
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"corrupted or incomplete ({error})", file=path) from error


def read_pickle(path: Path) -> dict[str, Tensor]:
    """Read a state dict that was written by `torch.save`.

    Raises:
        InputError: The file is corrupted, or contains objects other than tensors, which could run
            code.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many classes for corrupted or malicious files
        raise InputError(
            "corrupted, or a pickle with objects other than tensors, which could run code",
            file=path,
        ) from error
    if not isinstance(content, dict) or not all(isinstance(x, Tensor) for x in content.values()):
        raise InputError("must contain a dictionary of tensors", file=path)
    return content
