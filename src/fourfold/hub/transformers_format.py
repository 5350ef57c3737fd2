"""Import of models from transformers directories, and export to transformers directories."""

import re
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fourfold.core.validation import check_stored, check_types
from fourfold.errors import InputError, errors_in, reading
from fourfold.families import families
from fourfold.hub import directory
from fourfold.hub.architecture import Architecture, Json, get_key, norm_eps_note, set_key
from fourfold.hub.directory import CONFIG_FILE, GENERATION_FILE, Tensors
from fourfold.hub.keymap import listed
from fourfold.hub.preprocessing import generation_entries, parse_generation_defaults
from fourfold.json_files import TYPES, check_values, read_json
from fourfold.layers.base_model import Model

_RECORD = f"{CONFIG_FILE} in the checkpoint"  # a `SourceCheckpoint`


@dataclass(frozen=True)
class SourceCheckpoint:
    """Information about the transformers directory of an imported model, for an exact export.

    Args:
        config: Content of config.json.
        unmapped_tensors: Tensors of the checkpoint, or first rows of tensors, for which the model
            has no parameter, by name in transformers.
        is_base_model: True if the tensors had the names of a model without a head.
        generation_config: Content of generation_config.json, such as the tokens that end a text;
            empty if there is no such file.
    """

    config: Json
    unmapped_tensors: Mapping[str, Tensor]
    is_base_model: bool
    generation_config: Json = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_types(self, prefix="source.")
        check_values(self.config, TYPES[CONFIG_FILE], "source.config.")
        check_values(self.generation_config, TYPES[GENERATION_FILE], "source.generation_config.")
        check_stored(self.unmapped_tensors)


def read_model(path: Path, dtype: torch.dtype | None = None) -> Model:
    """Read the model of a transformers directory, on the CPU and in eval mode.

    A warning lists the keys of config.json that are ignored although they may be relevant.
    `model.source` is set to a `SourceCheckpoint`. For an image model, `model.heads` contains only
    the classification heads whose tensors are in the directory.

    Args:
        path: Directory with config.json and weights.
        dtype: Data type of the weights; None means fp32.

    Raises:
        InputError: The files are corrupted, or contain a model that is not supported.
    """
    dtype = dtype or torch.float32
    config = read_json(path / CONFIG_FILE)
    with reading(path / CONFIG_FILE):
        candidates = _architectures_of(config)
    # A checkpoint that was converted from TensorFlow has `gamma` and `beta` in a LayerNorm.
    tensors = directory.read_tensors(path)
    for old, new in (("gamma", "weight"), ("beta", "bias")):
        tensors = {re.sub(rf"\.{old}$", f".{new}", name): x for name, x in tensors.items()}
    architecture = _select_architecture(candidates, config, tensors)
    prefix = architecture.base_model_prefix
    is_base_model = not any(name.startswith(prefix) for name in tensors)
    if is_base_model:
        tensors = {prefix + name: x for name, x in tensors.items()}
    with reading(path / CONFIG_FILE):
        native_config: Any = architecture.read_config(config, tensors.keys())
        options = architecture.model_options(tensors.keys())
        build = partial(architecture.model_class, native_config, **options)
        meta = directory.build_on_meta(build, native_config, tensors)
    if unread := architecture.unread_keys(config, tensors.keys()):
        message = "keys that are ignored, although they may change the outputs of the model:"
        warnings.warn(f"{path / CONFIG_FILE}: {message} {listed(unread)}", stacklevel=1)
    with errors_in(path):
        native, unmapped = architecture.keymap.to_native(tensors, meta.state_dict(), dtype)
        model = directory.build_with(build, meta, native, dtype)
        _check_constants(architecture, unmapped, dict(model.named_buffers()))
    entries = read_json(path / GENERATION_FILE, optional=True)
    model.source = SourceCheckpoint(config, unmapped, is_base_model, entries)
    model.format_name = config["model_type"]
    return model


def unmapped_tensors_for(source: Model, target: Model) -> dict[str, Tensor]:
    """Return tensors that the import of one model left unused and that fit another model.

    For example, a checkpoint of BERT may contain a pooler. A masked language model (`source`) has
    no pooler, but a classifier (`target`) has one. The result has tensors in fp32 by parameter name
    of `target`; it is empty for a `source` that was not imported.
    """
    result: dict[str, Tensor] = {}
    if source.source is not None:
        for architecture in _architectures_of(source.source.config):
            if architecture.model_class is type(target):
                unmapped = source.source.unmapped_tensors
                result |= architecture.keymap.to_native_subset(unmapped, target.state_dict())
    return {name: x.float() for name, x in result.items()}


def write_model(model: Model, path: Path, entries: Json | None = None) -> str:
    """Write a directory for the `from_pretrained` method of transformers.

    A model that was imported from a transformers directory (`model.source`) keeps the architecture
    and the data type of that directory. Tensors, entries of config.json that fourfold does not use,
    and generation_config.json are then written again, with the options of decoding that were
    changed in `model.generation_defaults`.

    Args:
        model: Model of fourfold.
        path: Directory, which is created if it does not exist.
        entries: Further entries of config.json, ignored for a model with a `source`.

    Returns:
        The name of the transformers class. A note in parentheses follows if `norm_eps` changes, and
        for a model without a `source` the other runtimes that are known not to read the class.

    Raises:
        InputError: No architecture of transformers represents the model.
    """
    source: SourceCheckpoint | None = model.source
    if source is None:
        model, architecture = _choose_architecture(model)
    else:
        with reading(_RECORD):
            candidates = _architectures_of(source.config)
            (architecture, *_) = [a for a in candidates if type(model) is a.model_class]
    native = {name: x.cpu() for name, x in model.state_dict().items()}
    unmapped = {} if source is None else source.unmapped_tensors
    tensors, unmatched = architecture.keymap.to_external(native, unmapped)
    if unmatched:
        message = f"of transformers has no tensors for {', '.join(unmatched)}"
        raise InputError(message, option=architecture.model_type)
    model_config: Any = model.config
    config = architecture.write_config(model_config)
    for key, value in (entries or {}).items():
        set_key(config, key, value)
    if source is None:
        dtypes = {x.dtype for x in tensors.values() if x.is_floating_point()}
        dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
        config["dtype"] = str(dtype).removeprefix("torch.")
    else:
        with reading(_RECORD):
            config = _merge_config(architecture, source.config, config, tensors.keys())
        tensors = {name: x.to(_config_dtype(source.config)) for name, x in tensors.items()}
        if source.is_base_model:
            prefix = architecture.base_model_prefix
            tensors = {name.removeprefix(prefix): x for name, x in tensors.items()}
    directory.write_directory(path, config, tensors)
    generation = {} if source is None else dict(source.generation_config)
    known = parse_generation_defaults([generation, config])
    if changed := generation_entries(model.generation_defaults or known, known):
        # If the file exists, transformers does not read the special tokens of config.json.
        tokens = {key: value for key, value in config.items() if key.endswith("_token_id")}
        generation = (generation or tokens) | changed
    if generation:
        directory.write_json(path / GENERATION_FILE, generation)
    written = architecture.read_config(config, tensors.keys())
    note = norm_eps_note(model_config.norm_eps, written.norm_eps)
    if source is None and architecture.unread_by:
        note += f", which {' and '.join(architecture.unread_by)} cannot read"
    return str(config["architectures"][0]) + note


def _choose_architecture(model: Model) -> tuple[Model, Architecture]:
    """Return the first architecture that represents every setting, and the model for it."""
    reasons = []
    name = type(model).__name__
    paths = [x for f in families() if name in f.models for x in f.architectures.values()]
    for module in map(import_module, dict.fromkeys(paths)):
        # Marian stores sinusoidal positions in another order, to which a model is converted.
        model = getattr(module, "prepare_export", lambda same: same)(model)
        config: Any = model.config
        for architecture in module.ARCHITECTURES:
            if type(model) is not architecture.model_class or not architecture.export_if(config):
                continue
            tensors, unmatched = architecture.keymap.to_external(model.state_dict(), {})
            problems = architecture.unrepresentable(config, tensors.keys()) or unmatched
            if not problems:
                return model, architecture
            reasons.append(f"{architecture.model_type} does not support {', '.join(problems)}")
    detail = "; ".join(reasons) or "transformers has no class for this model"
    raise InputError(f"cannot be exported to transformers: {detail}", option=name)


def _merge_config(
    architecture: Architecture, old: Json, new: Json, names: Collection[str]
) -> dict[str, Any]:
    """Return the original config.json of an imported model, with the settings that have changed.

    Keys that do not belong to a changed setting keep their original values.
    """
    before, after = (architecture.read_config(config, names) for config in (old, new))
    fields = [f for f in architecture.fields if getattr(before, f.name) != getattr(after, f.name)]
    changed = [key for field in fields for key in field.hf_keys]
    extra = architecture.extra_config(before)
    changed += [key for key, x in architecture.extra_config(after).items() if x != extra[key]]
    merged = {"architectures": new["architectures"], **old}
    for key in changed:
        set_key(merged, key, get_key(new, key))
    return merged


def _architectures_of(config: Json) -> list[Architecture]:
    """Return the architectures that have the `model_type` of a config.json."""
    model_type = config.get("model_type")
    known = {name: path for family in families() for name, path in family.architectures.items()}
    # The first architecture of a `model_type` whose distinctive tensors exist is chosen.
    found = import_module(known[model_type]).ARCHITECTURES if model_type in known else ()
    candidates = [a.adapt(a, config) for a in found if a.model_type == model_type]
    if not candidates:
        names = ", ".join(known)
        raise InputError(f"must be one of {names}, got {model_type!r}", option="model_type")
    return candidates


def _select_architecture(
    candidates: list[Architecture], config: Json, tensors: Tensors
) -> Architecture:
    """Select an architecture by the class in config.json, otherwise by the names of the tensors.

    The class has precedence: the checkpoint of a token classifier may contain an unused pooler, and
    has then all tensors of a sequence classifier.
    """
    classes = config.get("architectures")
    for architecture in candidates:
        if isinstance(classes, list) and architecture.hf_class in classes:
            return architecture
    return next(a for a in candidates if tensors.keys() >= set(a.distinctive))


def _check_constants(architecture: Architecture, stored: Tensors, computed: Tensors) -> None:
    """Check that buffers stored in a checkpoint equal the computed buffers of the model."""
    for external, name in architecture.constants.items():
        expected = computed[name]
        found = stored.get(external, expected).float()
        # The tolerance is the rounding of bf16.
        if found.shape != expected.shape or (found - expected).abs().max() > 1e-2:
            message = "must be the table of sinusoidal positions, but has other values"
            raise InputError(message, option=external)


def _config_dtype(config: Json) -> torch.dtype:
    """Return the data type in a config.json; float32 if it has none or an unknown type."""
    name = config.get("dtype") or config.get("torch_dtype")
    dtype = getattr(torch, str(name).removeprefix("torch."), None)
    if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
        return dtype
    return torch.float32
