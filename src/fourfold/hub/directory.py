"""A directory of transformers on disk: config.json beside its tensors."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fourfold.core.errors import InputError
from fourfold.data.json_text import parse_json

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
OLD_WEIGHTS = "pytorch_model.bin"


# What is fetched of a model on the hub: no weights of other frameworks.
WANTED = ("*.json", "*.safetensors", "*.txt", "*.model", "*.spm", OLD_WEIGHTS)
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def located(place: str | Path, files: Sequence[str] = WANTED) -> Path:
    """A path as it is; what is none and looks like `owner/name` is fetched from the hub.

    Args:
        place: The path or name.
        files: What is fetched of it.

    Raises:
        InputError: It cannot be fetched.
    """
    path = Path(place)
    if path.exists() or not HUB_ID.fullmatch(str(place)):
        return path
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise InputError(
            f"{place}: there is no such path, and the hub needs a package that is missing:"
            " pip install -e '.[hub]'"
        ) from error
    try:
        return Path(snapshot_download(str(place), allow_patterns=list(files)))
    except Exception as error:  # no network, no such model, no permission: many classes
        first = str(error).strip().split("\n")[0]
        raise InputError(
            f"{place}: there is no such path, and it cannot be fetched from the hub: {first}"
        ) from error


def is_directory(path: Path) -> bool:
    """Whether `path` is a directory as transformers writes it."""
    return (path / CONFIG).is_file()


def read_config(path: Path) -> dict[str, Any]:
    """config.json.

    Raises:
        InputError: It is missing or no JSON object.
    """
    return read_json(path / CONFIG)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors by name, on the CPU: safetensors in one file or several, or an old pickle.

    Raises:
        InputError: There are none, a file is broken or missing, or a pickle wants to run code.
    """
    if (path / WEIGHTS).is_file():
        return read_safetensors(path / WEIGHTS)
    if (path / INDEX).is_file():
        places = read_json(path / INDEX).get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(p, str) for p in places.values()):
            raise InputError(f"{path / INDEX}: no weight_map from tensors to files")
        tensors: dict[str, Tensor] = {}
        for file in sorted(set(places.values())):
            tensors.update(read_safetensors(path / file))
        absent = [name for name in places if name not in tensors]
        if absent:
            raise InputError(f"{path}: {places[absent[0]]} lacks the tensor {absent[0]}")
        return tensors
    if (path / OLD_WEIGHTS).is_file():
        return read_pickle(path / OLD_WEIGHTS)
    raise InputError(f"{path}: no weights there: neither {WEIGHTS} nor {OLD_WEIGHTS}")


def write(path: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write config.json and the tensors into a directory, which is made."""
    path.mkdir(parents=True, exist_ok=True)
    text = json.dumps(dict(config), indent=2, sort_keys=True, ensure_ascii=False)
    # transformers asks for this word about the format.
    save_file(dict(tensors), path / WEIGHTS, metadata={"format": "pt"})
    (path / CONFIG).write_text(text + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        InputError: There is no such file, or something else in it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InputError(f"{path}: there is no such file") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not JSON: {error}") from error
    content = parse_json(text, str(path))
    if not isinstance(content, dict):
        raise InputError(f"{path}: a JSON object is needed, not a {type(content).__name__}")
    return content


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """All tensors of one file.

    Raises:
        InputError: It is missing or broken.
    """
    if not path.is_file():
        raise InputError(f"{path}: this part of the weights is missing")
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"{path}: broken or cut off ({error})") from error


def read_pickle(path: Path) -> dict[str, Tensor]:
    """All tensors of one file of torch.

    Raises:
        InputError: It is broken, wants to run code, or holds something else.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a hostile or broken file makes of it
        raise InputError(f"{path}: broken, or a pickle that wants to run code; refused") from error
    if not isinstance(content, dict) or not all(isinstance(x, Tensor) for x in content.values()):
        raise InputError(f"{path}: no dictionary of tensors")
    return content
