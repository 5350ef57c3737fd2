"""Loading of models from checkpoints, run directories and Hugging Face directories."""

import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fourfold.checkpoints import native_directory
from fourfold.checkpoints.classes import Classes, find_model_class, is_shipped
from fourfold.checkpoints.files import find_checkpoint, read_file
from fourfold.checkpoints.schema import (
    WEIGHT_PREFIX,
    check_content,
    config_from_dict,
    dataclass_from_dict,
)
from fourfold.core.validation import check_choice, check_kinds
from fourfold.errors import InputError, errors_in, reading
from fourfold.finetuning.config import TuningConfig
from fourfold.finetuning.lora import add_lora, merge_lora
from fourfold.generation.defaults import GenerationDefaults
from fourfold.hub import directory
from fourfold.hub.directory import SourceModel
from fourfold.layers.base_model import Model
from fourfold.layers.quantization import quantize as quantize_model
from fourfold.tokenization.tokenizer import Tokenizer

ModelT = TypeVar("ModelT", bound=Model)
DTYPES = ("float32", "bfloat16", "float16", "float64")


def load(
    path: str | Path,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    classes: Classes = (),
    quantize: str | None = None,
) -> Model:
    """Load a model in eval mode, with its weights, config and tokenizer.

    Args:
        path: One of the following:

            - a checkpoint file (`.ckpt`)
            - a run directory, whose best.ckpt is loaded if it exists, otherwise average.ckpt,
              otherwise last.ckpt
            - a directory written by `fourfold.save`
            - a Hugging Face directory of transformers or timm
            - a file of weights of timm or nanoGPT
            - `hf://owner/name`, a model on the Hugging Face hub
        device: Device of the model; the CPU by default.
        dtype: Floating-point type of the weights, such as `torch.bfloat16` or "bfloat16"; fp32 by
            default.
        classes: Your own model classes that the checkpoint may name, or their import paths.
        quantize: "int8" converts linear layers and token embeddings to int8, for inference on a
            CPU. None keeps the weights in `dtype`.

    Returns:
        The model, with the following attributes:

        - `config`
        - `tokenizer`: None if none is stored
        - `generation_defaults`: Special token ids, and options of beam search. The command line
          uses both; `fourfold.generate` and `fourfold.beam_search` use only the token ids.
        - `artifacts`: Dictionary of other values that inference needs, such as `class_names`.

    Raises:
        InputError: There is no such checkpoint; the checkpoint is corrupted; the architecture is
            unknown; the checkpoint names a class that is neither part of fourfold nor in `classes`;
            `dtype` or `quantize` is an unknown name; or int8 is asked for on another device.

    Example:
        >>> import tempfile, torch, fourfold
        >>> model = fourfold.create("gpt2", n_layers=1, vocab_size=100)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     fourfold.save(model, folder)
        ...     loaded = fourfold.load(folder, dtype="bfloat16")
        >>> fourfold.generate(loaded, torch.tensor([[5, 6]]), max_new=3).shape
        torch.Size([1, 5])
    """
    if dtype is not None:
        name = str(dtype).removeprefix("torch.")
        check_choice("dtype", name, DTYPES)
        dtype = getattr(torch, name)
    model: Any = set_attributes(read_model(path, classes=classes))
    loaded: Model = model.to(device=device, dtype=dtype)
    quantize_model(loaded, quantize)
    return loaded


def set_attributes(source: SourceModel) -> Model:
    """Set `tokenizer`, `generation_defaults` and `artifacts` of a model, and return the model.

    Args:
        source: The model, and the values that were stored with it. Special tokens that are missing
            in its defaults of generation are taken from the tokenizer.
    """
    model = source.model
    model.tokenizer = Tokenizer.from_str(source.tokenizer) if source.tokenizer else None
    defaults = within_vocabulary(source.defaults, model, source.path)
    model.generation_defaults = _with_special_tokens(defaults, model)
    model.artifacts = dict(source.artifacts)
    return model


def generation_defaults(init_args: Mapping[str, Any]) -> GenerationDefaults:
    """Return the fields of GenerationDefaults that are among the arguments of a task."""
    given = {field.name: init_args.get(field.name) for field in fields(GenerationDefaults)}
    return GenerationDefaults(**given)


def stored_defaults(content: Mapping[str, Any], path: Path) -> GenerationDefaults:
    """Return the generation defaults of a checkpoint, also those of the directory it came from.

    Args:
        content: Checked content of the checkpoint file.
        path: The file, for error messages.
    """
    defaults = generation_defaults(content["fourfold"]["task"]["init_args"])
    if "source" not in content:
        return defaults
    from fourfold.hub.preprocessing import parse_generation_defaults
    from fourfold.hub.transformers_format import SourceCheckpoint

    with reading(path):
        source = dataclass_from_dict(SourceCheckpoint, content["source"])
    stored = asdict(parse_generation_defaults([source.generation_config, source.config]))
    return replace(defaults, **{x: y for x, y in stored.items() if getattr(defaults, x) is None})


def within_vocabulary(
    defaults: GenerationDefaults, model: Any, path: str | Path
) -> GenerationDefaults:
    """Return generation defaults without end tokens outside the vocabulary, which a warning lists.

    Args:
        defaults: The stored defaults.
        model: The model; its defaults are returned unchanged if it does not generate tokens.
        path: The checkpoint, for the warning.
    """
    size = model.config.vocab_size if getattr(model, "can_generate", False) else math.inf
    kept = [token for token in defaults.end_ids if 0 <= token < size]
    if unknown := [str(token) for token in defaults.end_ids if token not in kept]:
        message = f"end tokens outside the vocabulary of {size}, ignored: {', '.join(unknown)}"
        warnings.warn(f"{path}: {message}", stacklevel=1)
    return replace(defaults, eos_id=kept[0] if kept else None, stop_ids=kept[1:] or None)


def _with_special_tokens(defaults: GenerationDefaults, model: Any) -> GenerationDefaults:
    """Return a copy of generation defaults in which missing special token ids are filled in.

    A missing id (None) is taken from the model's tokenizer. If the model's config has a
    `decoder_start_token_id`, this id becomes `bos_id`, even if `bos_id` was not missing.
    """
    names = ("bos_id", "eos_id", "pad_id")
    missing = [name for name in names if getattr(defaults, name) is None]
    values = {name: getattr(model.tokenizer, name, None) for name in missing}
    start = getattr(model.config, "decoder_start_token_id", None)
    return replace(defaults, **(values if start is None else {**values, "bos_id": start}))


def is_model_directory(path: Path) -> bool:
    """Return True if a directory holds a model that `fourfold.save` or another library wrote."""
    return directory.is_model_directory(path) or os.path.lexists(
        path / native_directory.DESCRIPTION
    )


def read_model(
    path: str | Path, *, classes: Classes = (), allow_missing_heads: bool = False
) -> SourceModel:
    """Read a model in any format that `load` accepts.

    Args:
        path: A path, or `hf://owner/name`, that `load` accepts.
        classes: The user's model classes that the checkpoint may name, or their import paths.
        allow_missing_heads: If False, an image model of another library without classification
            heads raises InputError. If True, it is read without heads.

    Returns:
        The model, in fp32 and eval mode on the CPU, with the tokenizer, the artifacts and the
        generation defaults that are stored with it.

    Raises:
        InputError: There is no such model; the file is corrupted; the architecture is unknown; or
            the checkpoint names a class that the user does not allow.
    """
    located = directory.resolve_path(path)
    description = located / native_directory.DESCRIPTION
    content: Mapping[str, Any] | None = None
    if os.path.lexists(description):
        located, content = description, native_directory.read(located)
    elif not directory.is_model_directory(located):
        if located.is_dir():
            located = find_checkpoint(located)
        is_safetensors = located.suffix == ".safetensors"
        content = directory.read_safetensors(located) if is_safetensors else read_file(located)
    if content is not None and "fourfold" in content:
        return model_from_checkpoint(content, located, classes)
    from fourfold.hub import detect_format  # imports all architectures

    return detect_format.read_model(located, content, allow_missing_heads=allow_missing_heads)


def model_from_checkpoint(
    content: Mapping[str, Any], path: Path, classes: Classes = ()
) -> SourceModel:
    """Build the model of a checkpoint, with its low-rank updates (LoRA) merged into the weights.

    Args:
        content: Content of the checkpoint file (see `checkpoints/schema.py`).
        path: The file, for error messages.
        classes: The user's model classes that the checkpoint may name, or their import paths.

    Returns:
        The model, in eval mode, with the tokenizer, the artifacts and the generation defaults that
        are stored with it.

    Raises:
        InputError: The content or the config is not valid; the class of the model is unknown or not
            allowed; or the weights do not match the config.
    """
    check_content(content, path)
    saved = content["fourfold"]
    name, values = saved["model"]["class"], saved["model"]["config"]
    model_class, config_class = find_model_class(name, values, classes, path)
    with (reading if is_shipped(model_class) else errors_in)(path):
        return _build_source(content, path, model_class, config_class)


def _build_source(
    content: Mapping[str, Any], path: Path, model_class: type[Model], config_class: Any
) -> SourceModel:
    saved = content["fourfold"]
    init_args, artifacts = saved["task"]["init_args"], saved["data"]
    config = config_from_dict(config_class, saved["model"]["config"])
    check_fits(model_class, config, content["state_dict"])
    model = build_model(model_class, config)
    tuning = dataclass_from_dict(TuningConfig, init_args.get("tuning", {}))
    if tuning.lora_rank:
        add_lora(model, tuning)
    state = {
        name.removeprefix(WEIGHT_PREFIX): tensor
        for name, tensor in content["state_dict"].items()
        if name.startswith(WEIGHT_PREFIX)
    }
    load_weights(model, state, path)
    check_classes(model.config, artifacts, path)
    if "source" in content:
        from fourfold.hub.transformers_format import SourceCheckpoint

        model.source = dataclass_from_dict(SourceCheckpoint, content["source"])
    merge_lora(model)
    return SourceModel(
        path,
        model.eval(),
        tokenizer=artifacts.get("tokenizer"),
        artifacts=artifacts,
        defaults=stored_defaults(content, path),
    )


def check_fits(model_class: type[Model], config: Any, state: Mapping[str, Tensor]) -> None:
    """Check that a state dict has enough tensors and elements for the model of a config.

    The model is built on the meta device, so a wrong config cannot exhaust the memory. The user's
    own model classes are not checked, because their constructors may need real tensors.

    Args:
        model_class: Class of the model.
        config: Config of the model.
        state: State dict of the model or of its task. The state dict may hold further tensors.

    Raises:
        InputError: The config describes a larger model than `state` (see `build_on_meta`).
    """
    if is_shipped(model_class):
        directory.build_on_meta(lambda: model_class(config), config, state)


def build_model(model_class: type[ModelT], config: Any) -> ModelT:
    """Build a model with newly initialized weights.

    Args:
        model_class: Class of the model.
        config: Config of the model, an instance of the config class of `model_class`.

    Raises:
        InputError: The machine has too little memory for the weights.
    """
    try:
        return model_class(config)
    except RuntimeError as error:
        # torch has no exception class of its own for these two failures.
        if "allocate memory" in str(error) or "size calculation overflowed" in str(error):
            message = "describes a model for which the machine has too little memory"
            raise InputError(message, option="model.config") from error
        raise


def load_weights(
    module: nn.Module, state: Mapping[str, Any], path: Path, strict: bool = True
) -> None:
    """Load a state dict into a module.

    Args:
        module: The module whose weights are overwritten.
        state: The state dict, whose names must be exactly those of the module if `strict` is True.
        path: File of the state dict, for the error message.
        strict: False ignores names that only the state dict or only the module has.

    Raises:
        InputError: Names, shapes or kinds of numbers in the state dict do not match the module.
    """
    with errors_in(path):
        check_kinds(state, module.state_dict())
    try:
        module.load_state_dict(state, strict=strict)
    except RuntimeError as error:
        raise InputError("the weights do not match the model's config", file=path) from error


def check_classes(config: Any, artifacts: Mapping[str, Any], path: Path) -> None:
    """Check that a checkpoint contains as many class names as its model has classes.

    Nothing is checked if the config has no field `n_classes`, or if the checkpoint has no class
    names.

    Args:
        config: Config of the model.
        artifacts: Values in the checkpoint that inference needs, by name, such as `class_names`.
        path: The checkpoint, for the error message.

    Raises:
        InputError: The numbers differ.
    """
    names = artifacts.get("class_names")
    n_classes = getattr(config, "n_classes", None)
    if names and n_classes not in (None, len(names)):
        raise InputError(f"it has {len(names)} class names for {n_classes} classes", file=path)
