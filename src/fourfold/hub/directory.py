"""Model directories of transformers and timm: files, `SourceModel`, and bounds of model sizes."""

import json
import os
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fourfold.core.validation import check_stored, count_stored
from fourfold.errors import InputError, errors_in
from fourfold.generation.defaults import GenerationDefaults
from fourfold.json_files import read_json
from fourfold.layers.base_model import Model, on_meta

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
ModelT = TypeVar("ModelT", bound=Model)


@dataclass(frozen=True)
class SourceModel:
    """Model that was read from a path, with the tokenizer and the other values stored there.

    Args:
        path: The file or directory that was read.
        model: The model on the CPU, in fp32 and eval mode. `model.source` is a `SourceCheckpoint`
            if the model was imported from a transformers directory.
        format_name: Name of the format of another library, for messages: timm, nanoGPT, or
            the `model_type` of a transformers directory. "" for a checkpoint of fourfold.
        notes: Sentences for the user about assumptions of the import and about ignored files.
        tokenizer: The tokenizer as JSON; None if none is stored.
        artifacts: Values that inference needs, such as class names and image preprocessing, by
            name. For transformers, only those of `read_class_artifacts`.
        defaults: Special tokens and options of beam search that are stored with the model.
    """

    path: Path
    model: Model
    format_name: str = ""
    notes: Sequence[str] = ()
    tokenizer: str | None = None
    artifacts: Mapping[str, Any] = field(default_factory=dict)
    defaults: GenerationDefaults = field(default_factory=GenerationDefaults)


def resolve_path(path: str | Path) -> Path:
    """Return the local path of a model; download the model first if it is on the Hugging Face hub.

    Args:
        path: A local path, or the name of a model on the Hugging Face hub after `hf://`, such as
            `hf://openai-community/gpt2`.

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
    for shard in set(shards.values()):
        if Path(shard).name != shard:  # an index could name any file of the machine
            message = f"must name files in the directory of the index, got {shard[:80]!r}"
            raise InputError(message, option="weight_map", file=path / INDEX_FILE)
    tensors: dict[str, Tensor] = {}
    for shard in sorted(set(shards.values())):
        tensors |= read_safetensors(path / shard)
    return tensors


def check_layers(config: Any, tensors: Mapping[str, Any]) -> None:
    """Check that a config has at most as many layers as the weights have tensors.

    The check precedes the construction of the model, whose duration grows with the number of
    layers.

    Args:
        config: Config of a model, a dataclass. Configs of its parts are checked, too.
        tensors: Tensors of the weights by name.

    Raises:
        InputError: There are too few tensors.
    """
    for name, value in vars(config).items():
        if is_dataclass(value):
            check_layers(value, tensors)
        elif name in _LAYER_COUNTS and isinstance(value, int) and value > len(tensors):
            message = f"must be at most the number of tensors in the weights ({len(tensors)})"
            raise InputError(f"{message}, got {value}", option=name)


def build_on_meta(
    build: Callable[[], ModelT], config: Any, tensors: Mapping[str, Tensor]
) -> ModelT:
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


def tensor_shape(tensors: Mapping[str, Tensor], name: str, ndim: int) -> tuple[int, ...]:
    """Return the shape of a tensor that must exist and have `ndim` dimensions.

    Args:
        tensors: Tensors by name.
        name: Name of the tensor.
        ndim: Required number of dimensions.

    Raises:
        InputError: There is no such tensor, or it has another number of dimensions.
    """
    if name not in tensors or tensors[name].ndim != ndim:
        raise InputError(f"have no tensor {name} of {ndim} dimensions", option="weights")
    return tuple(tensors[name].shape)


def write_directory(path: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write config.json and model.safetensors to a directory, which is created if necessary.

    Args:
        path: Directory to write.
        config: Content of config.json.
        tensors: Tensors by their names in the library that will read the directory.
    """
    path.mkdir(parents=True, exist_ok=True)
    # transformers requires this entry of the metadata.
    save_file(dict(tensors), path / WEIGHTS_FILE, metadata={"format": "pt"})
    write_json(path / CONFIG_FILE, config)


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object to a file, indented and with sorted keys, as transformers does."""
    text = json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False)
    file.write_text(text + "\n", encoding="utf-8")


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of one safetensors file to the CPU, by name.

    Raises:
        InputError: The file is missing or corrupted.
    """
    if not os.path.isfile(path):
        raise InputError("this file of the weights is missing", file=path)
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"corrupted or incomplete ({error})", file=path) from error


def read_pickle(path: Path) -> dict[str, Tensor]:
    """Read a state dict, a dict of tensors on the CPU, that was written by `torch.save`.

    Raises:
        InputError: The file is corrupted, or contains objects other than tensors. Such objects
            could run code.
    """
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                n_unpacked = sum(member.file_size for member in archive.infolist())
            if n_unpacked > path.stat().st_size:  # torch stores without compression
                raise InputError("must not be compressed", option="its archive", file=path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except InputError:
        raise
    except Exception as error:  # torch raises many classes for corrupted or malicious files
        message = "corrupted, or a pickle with objects other than tensors, which could run code"
        raise InputError(message, file=path) from error
    if not isinstance(content, dict) or not all(isinstance(x, Tensor) for x in content.values()):
        raise InputError("must contain a dictionary of tensors", file=path)
    with errors_in(path):
        check_stored(content)
    return content
