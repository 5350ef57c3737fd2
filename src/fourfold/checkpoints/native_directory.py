"""Reading and writing of model directories in fourfold's own format.

`fourfold.save` writes this format for models that transformers has no class for. A directory
contains model.safetensors, fourfold.json and, if the model has a tokenizer, tokenizer.json.
fourfold.json holds

    {"version": 2,
     "model": {"class": "ResNet", "config": {...}},
     "artifacts": {"class_names": [...], ...},
     "generation": {"eos_id": 2, ...}}
"""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from fourfold.checkpoints.classes import model_name
from fourfold.checkpoints.schema import VERSION, WEIGHT_PREFIX, check_version
from fourfold.hub.directory import WEIGHTS_FILE, read_safetensors, write_json
from fourfold.json_files import read_json
from fourfold.layers.generation_defaults import GenerationDefaults
from fourfold.text_files import read_text

DESCRIPTION = "fourfold.json"
TOKENIZER = "tokenizer.json"


def read(path: Path) -> dict[str, Any]:
    """Read a directory in fourfold's own format into the dictionary form of a checkpoint.

    The result has the keys `fourfold` and `state_dict` (see `checkpoints/schema.py`). The directory
    stores no task, so its class is "" and its `init_args` are the fields of `GenerationDefaults`.

    Raises:
        InputError: A file is missing, corrupted or of another version of fourfold.
    """
    file = path / DESCRIPTION
    description = read_json(file)
    check_version(description, file)
    data = description.get("artifacts")
    if os.path.lexists(path / TOKENIZER) and isinstance(data, dict):
        data["tokenizer"] = read_text(str(path / TOKENIZER))
    saved = {
        "version": VERSION,
        "model": description.get("model"),
        "task": {"class": "", "init_args": description.get("generation")},
        "data": data,
    }
    weights = read_safetensors(path / WEIGHTS_FILE)
    state = {WEIGHT_PREFIX + name: tensor for name, tensor in weights.items()}
    return {"fourfold": saved, "state_dict": state}


def write(model: Any, path: Path) -> None:
    """Write a model into an existing directory, in fourfold's own format.

    The attributes `artifacts`, `tokenizer` and `generation_defaults` are written, too, if they
    exist.
    """
    artifacts = getattr(model, "artifacts", {}).items()
    description = {
        "version": VERSION,
        "model": {"class": model_name(type(model)), "config": asdict(model.config)},
        "artifacts": {name: value for name, value in artifacts if name != "tokenizer"},
        "generation": asdict(getattr(model, "generation_defaults", None) or GenerationDefaults()),
    }
    # Copies, since the format does not store tensors that share memory.
    weights = {name: x.detach().cpu().clone() for name, x in model.state_dict().items()}
    save_file(weights, path / WEIGHTS_FILE, metadata={"format": "pt"})
    if getattr(model, "tokenizer", None) is not None:
        (path / TOKENIZER).write_text(model.tokenizer.to_str(), encoding="utf-8")
    write_json(path / DESCRIPTION, description)
