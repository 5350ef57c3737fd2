"""Native directory format: fourfold.json, model.safetensors and tokenizer.json.

`fourfold.save` writes it for models that transformers has no class for. fourfold.json holds

    {"version": 2,
     "model": {"class": "ResNet", "config": {...}},
     "artifacts": {"class_names": [...], ...},
     "generation": {"eos_id": 2, ...}}
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from fourfold.checkpoints.classes import model_name
from fourfold.checkpoints.format import (
    VERSION,
    check_artifacts,
    check_version,
    dataclass_from_dict,
    in_checkpoint,
)
from fourfold.core.validation import check_type
from fourfold.generation.defaults import GenerationDefaults
from fourfold.hub.directory import read_json, read_safetensors

DESCRIPTION = "fourfold.json"
WEIGHTS = "model.safetensors"
TOKENIZER = "tokenizer.json"


@dataclass(frozen=True)
class NativeDirectory:
    """Content of a native directory.

    Args:
        model: Name of the model class, and the config as plain values.
        weights: State dict of the model.
        artifacts: Values of the DataModule, such as class names; without the tokenizer.
        defaults: Special tokens and options of generation.
        tokenizer: The tokenizer as JSON, or None.
    """

    model: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    artifacts: Mapping[str, Any]
    defaults: GenerationDefaults
    tokenizer: str | None


def is_native(path: Path) -> bool:
    """Return whether `path` is a directory in the native format."""
    return (path / DESCRIPTION).is_file()


def read(path: Path) -> NativeDirectory:
    """Read a native directory.

    Raises:
        InputError: A file is missing, corrupted or of another version of fourfold.
    """
    file = path / DESCRIPTION
    content = read_json(file)
    check_version({"fourfold": content}, file)
    with in_checkpoint(file):
        for name in ("model", "artifacts", "generation"):
            check_type(name, content.get(name), dict)
        check_type("model.class", content["model"].get("class"), str)
        check_type("model.config", content["model"].get("config"), dict)
        check_artifacts(content["artifacts"])
        defaults = dataclass_from_dict(GenerationDefaults, content["generation"])
    weights = read_safetensors(path / WEIGHTS)
    tokenizer_file = path / TOKENIZER
    tokenizer = tokenizer_file.read_text(encoding="utf-8") if tokenizer_file.is_file() else None
    artifacts = content["artifacts"]
    if tokenizer is not None:
        artifacts["tokenizer"] = tokenizer
    return NativeDirectory(content["model"], weights, artifacts, defaults, tokenizer)


def write(model: Any, path: Path) -> None:
    """Write a model into an existing directory.

    Args:
        model: The model; `artifacts`, `tokenizer` and `generation_defaults` are written too, if it
            has them.
        path: The directory.
    """
    tokenizer = getattr(model, "tokenizer", None)
    artifacts = {k: v for k, v in getattr(model, "artifacts", {}).items() if k != "tokenizer"}
    defaults = getattr(model, "generation_defaults", None) or GenerationDefaults()
    description = {
        "version": VERSION,
        "model": {"class": model_name(type(model)), "config": asdict(model.config)},
        "artifacts": artifacts,
        "generation": asdict(defaults),
    }
    # Copies, since the format does not store tensors that share memory.
    weights = {name: x.detach().cpu().clone() for name, x in model.state_dict().items()}
    save_file(weights, path / WEIGHTS, metadata={"format": "pt"})
    if tokenizer is not None:
        (path / TOKENIZER).write_text(tokenizer.to_str(), encoding="utf-8")
    text = json.dumps(description, indent=2, ensure_ascii=False) + "\n"
    (path / DESCRIPTION).write_text(text, encoding="utf-8")
