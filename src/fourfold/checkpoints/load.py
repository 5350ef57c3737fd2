"""Loading of models from checkpoints, run directories and Hugging Face directories."""

import os
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fourfold.checkpoints import native_directory, schema
from fourfold.checkpoints.classes import Classes, find_model_class, is_shipped
from fourfold.checkpoints.files import find_checkpoint, is_run, read_file
from fourfold.core.validation import check_choice, check_kinds
from fourfold.errors import InputError, errors_in, reading
from fourfold.finetuning.config import TuningConfig
from fourfold.hub import directory
from fourfold.layers.base_model import Model
from fourfold.layers.generation_defaults import SAMPLING, GenerationDefaults

DTYPES = ("float32", "bfloat16", "float16", "float64")
_MISMATCH = "the weights do not match the model's config"


def load(
    path: str | Path,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    classes: Classes = (),
    quantize: str | None = None,
) -> Model:
    """Load a model in eval mode, with its weights, config and tokenizer.

    The weights are read in `dtype`, without a copy in fp32.

    Args:
        path: One of the following:

            - a checkpoint (`.ckpt`), a file or the directory of a sharded checkpoint
            - a run directory, whose best.ckpt is loaded if it exists, otherwise average.ckpt,
              otherwise last.ckpt
            - a directory written by `fourfold.save`
            - a Hugging Face directory of transformers or timm
            - a file of weights of timm, nanoGPT or llama2.c
            - `hf://owner/name`, a model on the Hugging Face hub
        device: Device of the model; the CPU by default.
        dtype: Floating-point type of the weights, such as `torch.bfloat16` or "bfloat16"; fp32 by
            default.
        classes: Your own model classes that the checkpoint may name, or their import paths.
        quantize: "int8" converts linear layers and token embeddings to int8, for inference on a
            CPU. None keeps the weights in `dtype`.

    Returns:
        The model. Its attributes `tokenizer`, `generation_defaults` and `artifacts` (other values
        that inference needs, such as `class_names`) are described in `fourfold.models.Model`.

    Raises:
        InputError: There is no such checkpoint; the checkpoint is corrupted; the architecture is
            unknown; the checkpoint names a class that is neither part of fourfold nor in `classes`;
            `dtype` or `quantize` is an unknown name; or int8 is asked for on another device.
    """
    name = "float32" if dtype is None else str(dtype).removeprefix("torch.")
    check_choice("dtype", name, DTYPES)
    model = read_model(path, classes=classes, dtype=getattr(torch, name)).to(device=device)
    if quantize is not None:
        from fourfold.layers.quantization import quantize as quantize_model

        quantize_model(model, quantize)
    return model


def generation_defaults(init_args: Mapping[str, Any]) -> GenerationDefaults:
    """Return the fields of GenerationDefaults that are among the arguments of a task."""
    # The temperature of a task, for example, is that of its distillation.
    names = {field.name for field in fields(GenerationDefaults)} - {*SAMPLING}
    return GenerationDefaults(**{name: init_args.get(name) for name in names})


def stored_defaults(content: Mapping[str, Any], path: Path) -> GenerationDefaults:
    """Return the generation defaults of a checkpoint, also those of the directory it came from.

    The content of the file at `path` must have been checked.
    """
    task = content["fourfold"]["task"]
    defaults = generation_defaults(task["init_args"])
    if not task["class"]:  # a directory of `fourfold.save`, which stores all fields
        defaults = replace(defaults, **{name: task["init_args"].get(name) for name in SAMPLING})
    with reading(path):
        source = _source_record(content)
    if source is None:
        return defaults
    from fourfold.hub.preprocessing import parse_generation_defaults

    stored = asdict(parse_generation_defaults([source.generation_config, source.config]))
    return replace(defaults, **{x: y for x, y in stored.items() if getattr(defaults, x) is None})


def _source_record(content: Mapping[str, Any]) -> Any:
    """Return the `SourceCheckpoint` of an imported model in a checkpoint; None if it has none."""
    if "source" not in content:
        return None
    from fourfold.hub.transformers_format import SourceCheckpoint

    source: SourceCheckpoint = schema.dataclass_from_dict(SourceCheckpoint, content["source"])
    tensors = {name: x.clone() for name, x in source.unmapped_tensors.items()}
    return replace(source, unmapped_tensors=tensors)


def read_model(
    path: str | Path,
    *,
    classes: Classes = (),
    allow_missing_heads: bool = False,
    dtype: torch.dtype | None = None,
) -> Model:
    """Read a model in any format that `load` accepts, on the CPU and in eval mode.

    Args:
        path: A path, or `hf://owner/name`.
        classes: The user's model classes that the checkpoint may name, or their import paths.
        allow_missing_heads: Read an image model of another library without its classification
            heads, if they are missing, in place of an error.
        dtype: Data type of the weights. None means fp32, and an initialization before the weights
            are read, so that trainings that read a source draw the same random numbers as ever.
    """
    located = directory.resolve_path(path)
    description = located / native_directory.DESCRIPTION
    content: Mapping[str, Any] | None = None
    if os.path.lexists(description):
        located, content = description, native_directory.read(located)
    elif not directory.is_model_directory(located):
        if is_run(located):
            located = find_checkpoint(located)
        readers: Any = {".safetensors": directory.read_safetensors, ".bin": directory.read_llama2c}
        content = readers.get(located.suffix, lambda _: None)(located)
        content = read_file(located, mmap=True) if content is None else content
    if content is not None and "fourfold" in content:
        return model_from_checkpoint(content, located, classes, dtype)
    from fourfold.hub import detect_format  # imports all architectures

    return detect_format.read_model(
        located, content, allow_missing_heads=allow_missing_heads, dtype=dtype
    )


def model_from_checkpoint(
    content: Mapping[str, Any], path: Path, classes: Classes = (), dtype: torch.dtype | None = None
) -> Model:
    """Build the model of a checkpoint, with its low-rank updates (LoRA) merged into the weights.

    The arguments are those of `read_model`, with the content of the file at `path`.

    Raises:
        InputError: The content or the config is not valid; the class of the model is unknown or not
            allowed; or the weights do not match the config.
    """
    schema.check_content(content, path)
    saved = content["fourfold"]
    name, values = saved["model"]["class"], saved["model"]["config"]
    model_class, config_class = find_model_class(name, values, classes, path)
    # The errors of the user's own code keep their class.
    with (reading if is_shipped(model_class) else errors_in)(path):
        artifacts = saved["data"]
        model = _build_model(content, path, model_class, config_class, dtype)
        check_classes(model.config, artifacts, path)
        model.source = _source_record(content)
        return directory.set_attributes(
            model, path, artifacts.get("tokenizer"), artifacts, stored_defaults(content, path)
        )


def _build_model(
    content: Mapping[str, Any],
    path: Path,
    model_class: type[Model],
    config_class: Any,
    dtype: torch.dtype | None,
) -> Model:
    saved = content["fourfold"]
    config = schema.config_from_dict(config_class, saved["model"]["config"])
    tuning = schema.dataclass_from_dict(TuningConfig, saved["task"]["init_args"].get("tuning", {}))
    state = {
        name.removeprefix(schema.WEIGHT_PREFIX): tensor
        for name, tensor in content["state_dict"].items()
        if name.startswith(schema.WEIGHT_PREFIX)
    }

    from fourfold.finetuning import lora

    def build() -> Model:
        model = model_class(config)
        if tuning.lora_rank:
            lora.add_lora(model, tuning)
        return model

    if not is_shipped(model_class):  # its constructor may need real tensors, or share weights
        model = build()
        load_weights(model, state, path)
        lora.merge_lora(model)
        return model.to(dtype).eval()
    read_as = None if tuning.lora_rank else dtype  # updates are merged in fp32
    meta = directory.build_on_meta(build, config, content["state_dict"])
    check_kinds(state, meta.state_dict())
    kind = read_as or torch.float32
    tensors = {name: directory.copy_tensor(x, kind) for name, x in state.items()}
    try:
        model = directory.build_with(build, meta, tensors, read_as)
    except RuntimeError as error:
        raise InputError(_MISMATCH, file=path) from error
    lora.merge_lora(model)
    return model.to(dtype)


def check_fits(model_class: type[Model], config: Any, state: Mapping[str, Tensor]) -> None:
    """Check that a state dict is large enough for the model of a config (see `build_on_meta`).

    The user's own model classes are not checked, because their constructors may need real tensors.
    """
    if is_shipped(model_class):
        directory.build_on_meta(lambda: model_class(config), config, state)


def load_weights(
    module: nn.Module, state: Mapping[str, Any], path: Path, strict: bool = True
) -> None:
    """Load the state dict of the file `path` into a module.

    If `strict` is False, names that only the state dict or only the module has are ignored.

    Raises:
        InputError: Names, shapes or kinds of numbers in the state dict do not match the module.
    """
    with errors_in(path):
        check_kinds(state, module.state_dict())
    try:
        module.load_state_dict(state, strict=strict)
    except RuntimeError as error:
        raise InputError(_MISMATCH, file=path) from error


def check_classes(config: Any, artifacts: Mapping[str, Any], path: Path) -> None:
    """Check that a checkpoint has no class names, or one for each class of its model."""
    names = artifacts.get("class_names")
    n_classes = getattr(config, "n_classes", None)
    if names and n_classes not in (None, len(names)):
        raise InputError(f"it has {len(names)} class names for {n_classes} classes", file=path)
