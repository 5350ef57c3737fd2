"""Format of a checkpoint: its section `fourfold`, checks of all values, building of configs.

A checkpoint of Lightning is a dictionary, to which fourfold adds the key `fourfold`:

    {"version": 2,
     "model": {"class": "CausalLM", "config": {...}},
     "task": {"class": "fourfold.models.causal_lm.task.CausalLanguageModeling", "init_args": {...}},
     "data": {"tokenizer": "...", "class_names": [...], ...}}

`data` holds the artifacts of the DataModule: the values that inference needs, such as the tokenizer
and the class names. The weights are in `state_dict`, with names that begin with "model.". All
values are plain, so that the file can be read with `weights_only=True`.
"""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

from torch import Tensor

from fourfold.core.validation import check_nesting, check_stored, check_type, quote, require_sizes
from fourfold.errors import InputError, errors_in, reading
from fourfold.finetuning.config import TuningConfig
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig

VERSION = 2
# Largest number of values in one entry of a checkpoint. A value that occurs twice counts twice.
MAX_VALUES = 10_000_000
INDEX = "index.pt"  # file of a sharded checkpoint that has everything but the values of tensors
WEIGHT_PREFIX = "model."  # prefix of the names of the model's weights in the state dict of a task
# Types of the artifacts of a DataModule, by name. A checkpoint may hold a list for a tuple.
ARTIFACTS: dict[str, Any] = {
    "tokenizer": str,
    "class_names": tuple[str, ...],
    "multi_label": bool,
    "max_len": int | None,
    "n_separators": int,
    "n_texts": int,
    "allow_no_answer": bool,
    "src_lang": str,
    "tgt_lang": str,
    "image_size": int | tuple[int, int],
    "n_channels": int,
    "mean": tuple[float, ...],
    "std": tuple[float, ...],
    "crop_pct": float,
    "crop_mode": str,
    "interpolation": str,
    "features": dict,
    "chat_template": dict,
    "sentence_transformers": dict,
}
# Sections of the key `fourfold`, and the type of each value of a section. All values but the
# artifacts are required.
SECTIONS: dict[str, dict[str, Any]] = {
    "model": {"class": str, "config": dict},
    "task": {"class": str, "init_args": dict},
    "data": ARTIFACTS,
}
TASK_SECTIONS = {"optimizer": OptimizerConfig, "schedule": ScheduleConfig, "tuning": TuningConfig}


def check_version(saved: Any, path: str | Path | None) -> None:
    """Check that a checkpoint, or a directory of `fourfold.save`, has the current format version.

    Args:
        saved: Section `fourfold` of a checkpoint, or the content of fourfold.json; None if missing.
        path: The file, for the error message; None if it is not known.

    Raises:
        InputError: Another program or another version of fourfold wrote the file.
    """
    file = path or "checkpoint"
    if saved is None:
        raise InputError("not a checkpoint written by fourfold", file=file)
    with errors_in(file):
        check_type("fourfold", saved, dict)
    version = saved.get("version")
    if version != VERSION:
        age = "a later" if isinstance(version, int) and version > VERSION else "an earlier"
        message = f"the checkpoint was written by {age} version of fourfold and cannot be read"
        raise InputError(message, file=file)


def check_content(content: Mapping[str, Any], path: str | Path, *, stored: bool = True) -> None:
    """Check the format version of a checkpoint, and the types of the values in it.

    Args:
        content: Content of the checkpoint file, a dictionary with the keys `fourfold` and
            `state_dict`.
        path: The file, for the error message.
        stored: False leaves out the check that the tensors are complete, for those on `meta`.

    Raises:
        InputError: The file is of another program or version, or a value is missing or has the
            wrong type.
    """
    saved: Any = content.get("fourfold")
    # This check comes first, because error messages of the later checks contain values.
    for name in content.keys() - {"state_dict"}:
        check_nesting(content[name], parts, MAX_VALUES, path)
    check_version(saved, path)
    with reading(path):
        for name, kinds in SECTIONS.items():
            section = saved.get(name)
            check_type(f"fourfold.{name}", section, dict)
            for key in kinds if name != "data" else section.keys() & kinds.keys():
                check_type(f"fourfold.{name}.{key}", section.get(key), kinds[key])
        check_type("state_dict", content.get("state_dict"), dict)
        for name, tensor in content["state_dict"].items():
            if not isinstance(name, str) or not isinstance(tensor, Tensor):
                raise InputError("must be a tensor", option=f"state_dict.{quote(name)}")
        if stored:
            check_stored(content["state_dict"])


def parts(value: Any) -> Iterable[Any]:
    """Return the values that a value of a checkpoint contains directly."""
    if isinstance(value, Mapping):
        return [*value, *value.values()]
    return value if isinstance(value, list | tuple | set | frozenset) else ()


def check_training(content: Mapping[str, Any], *, stored: bool = True) -> None:
    """Check the types of a checkpoint's loop progress (`loops`) and optimizer states.

    Checkpoints of `fourfold import` have neither. `stored` is that of `check_content`.

    Raises:
        InputError: A value is missing or has the wrong type.
    """
    loops = content.get("loops", {"fit_loop": {}})  # an imported checkpoint has none
    check_type("loops", loops, dict)
    check_type("loops.fit_loop", loops.get("fit_loop"), dict)
    check_type("optimizer_states", content.get("optimizer_states", []), list)
    for state in content.get("optimizer_states", []):
        check_type("optimizer_states", state, dict)
        for group in state.get("param_groups") or ():
            for name in group.keys() & {"lr", "initial_lr", "eps", "weight_decay", "momentum"}:
                check_type(f"optimizer_states.{name}", group[name], float)
        for moments in (state.get("state") or {}).values():
            for name, value in moments.items():
                check_type(f"optimizer_states.{name}", value, Tensor)
            if stored:
                check_stored(moments)


def check_init_args(task_class: type[Any], init_args: Mapping[str, Any]) -> None:
    """Check a task's constructor arguments from a checkpoint, before the constructor is called.

    The types of `optimizer`, `schedule` and `tuning` are checked when their dataclasses are built.

    Raises:
        InputError: An argument is unknown or has the wrong type.
    """
    annotations = init_annotations(task_class)
    for name, value in init_args.items():
        if name not in annotations:
            raise InputError(f"is not an argument of {task_class.__name__}", option=str(name)[:80])
        if name not in TASK_SECTIONS:
            check_type(name, value, annotations[name])


def init_annotations(task_class: type[Any]) -> dict[str, Any]:
    """Return the type annotations of a task's constructor arguments, by argument name.

    `self` and the model's `config` are left out. The arguments of all base classes are included,
    because a user's constructor may pass them on as `**kwargs` or with fixed values.
    """
    annotations: dict[str, Any] = {}
    for base in reversed(task_class.__mro__):
        if "__init__" in vars(base):
            parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
            named = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
            annotations |= {p.name: p.annotation for p in named}
    return {name: x for name, x in annotations.items() if name not in ("self", "config")}


def config_from_dict(config_class: Any, values: Any) -> Any:
    """Build the config of a trained model from its fields, as `asdict` returned them.

    Before a training, `vocab_size` and `n_classes` may be None, because the data determine them. In
    the config of a trained model, None is an error.
    """
    config = dataclass_from_dict(config_class, values)
    require_sizes(config)
    return config


def dataclass_from_dict(cls: Any, values: Any) -> Any:
    """Build a dataclass, and the dataclasses in it, from its fields, as `asdict` returned them.

    Raises:
        InputError: The values are not a mapping, or hold an unknown field or an invalid value.
    """
    if not isinstance(values, Mapping):
        raise InputError(f"must be a mapping, got {quote(values)!r}", option=cls.__name__)
    types: dict[str, Any] = {field.name: field.type for field in fields(cls)}
    built = dict(values)
    for name, value in values.items():
        if name not in types:
            raise InputError(f"is not a field of {cls.__name__}", option=str(name)[:80])
        if value is not None and (inner := _dataclass_of(types[name])):
            built[name] = dataclass_from_dict(inner, value)
    return cls(**built)


def _dataclass_of(annotation: Any) -> Any:
    """Return the dataclass in an annotation such as `ViTConfig | None`; None if there is none."""
    return next((x for x in (annotation, *get_args(annotation)) if is_dataclass(x)), None)


def flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten nested mappings to one level: {"model": {"name": 1}} becomes {"model.name": 1}."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{key}": inner for key, inner in flatten(value).items()}
        else:
            flat[name] = value
    return flat


def as_list(value: Any) -> Any:
    """Return a tuple as a list, as JSON and YAML store it; return any other value unchanged."""
    return list(value) if isinstance(value, tuple) else value
