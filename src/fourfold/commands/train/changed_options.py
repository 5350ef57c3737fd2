"""Comparison of the options of a resumed training with the config.yaml of its run directory.

All options are compared, except for those in `IGNORED`, so that a new option needs no entry here.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from fourfold.commands.train.config_files import LOADER
from fourfold.commands.train.options import count_devices
from fourfold.errors import InputError

# Dotted names of options that do not affect the results of a resumed training. The level init_args
# is left out of the names.
IGNORED = {
    *("allow_class", "ckpt_path", "config", "resume", "run_dir", "trainer.default_root_dir"),
    "auto_precision",  # the precision itself is compared
    *(
        "log_every_seconds",
        "log_samples",
        "look",
        "tensorboard",
        "trainer.logger",
        "trainer.profiler",
    ),
    *("wandb", "wandb_checkpoints", "wandb_group", "wandb_name", "wandb_project", "wandb_tags"),
    *("checkpoint.every_n_epochs", "checkpoint.every_n_steps", "trainer.log_every_n_steps"),
    *("trainer.enable_autolog_hparams", "trainer.enable_model_summary"),
    *("trainer.enable_progress_bar", "trainer.num_sanity_val_steps", "data.num_workers"),
    "data.tokenizer.file",  # the tokenizer itself is compared with that of the checkpoint
}
MAX_VALUE = 80  # characters of a value in a line


def describe_changes(config: str, checkpoint: Path) -> list[str]:
    """Compare the options of a resumed training with those of the last start of the training.

    The options of the last start are in the file config.yaml of the run directory.

    Args:
        config: All options as YAML.
        checkpoint: The checkpoint to resume from, in the folder checkpoints of its run directory.

    Returns:
        A line for each option that differs from the value in config.yaml, or one line if the file
        cannot be read.

    Raises:
        InputError: `model.init_from` differs.
    """
    folder = checkpoint.absolute().parent.parent
    current = _options(config)
    recorded: dict[str, Any] = {}
    with suppress(OSError, UnicodeDecodeError):
        recorded = _options((folder / "config.yaml").read_text(encoding="utf-8"))
    if not recorded:
        return [f"changed options are not reported, since {folder} has no record of the options"]
    lines = []
    for key in {**recorded, **current}:
        old, new = recorded.get(key), current.get(key)
        if key in IGNORED or _comparable(key, old) == _comparable(key, new):
            continue
        if key == "model.init_from":
            message = f"must be {_format(old)}, from which this training started, got"
            message += f" {_format(new)}; weights of another model need another --run_dir"
            raise InputError(message, option=key)
        lines.append(f"resuming with {key}={_format(new)}, recorded {_format(old)}")
    return lines


def _options(config: str) -> dict[str, Any]:
    """Return a dict from the dotted name of each option to its value.

    Args:
        config: Config as YAML text. The dict is empty if the text is not a YAML mapping.
    """
    try:
        content = yaml.load(config, LOADER)
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    return dict(_flatten(content)) if isinstance(content, Mapping) else {}


def _flatten(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the value of each option in nested mappings and lists.

    An item of a list of mappings has its index in the name, such as trainer.callbacks[0].patience.
    The levels init_args and dict_kwargs are left out of the names.

    Args:
        value: Mapping, list or value.
        name: Dotted name of `value`; "" for the whole config.
    """
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            is_level = key in ("init_args", "dict_kwargs") and isinstance(inner, Mapping)
            yield from _flatten(inner, name if is_level else f"{name}.{key}".lstrip("."))
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for index, inner in enumerate(value):
            yield from _flatten(inner, f"{name}[{index}]")
    else:
        yield name, None if value in ({}, []) else value


def _comparable(key: str, value: Any) -> Any:
    """Return a form of an option's value that is equal for values with the same effect.

    The number of devices replaces `trainer.devices`, and the real path replaces `model.init_from`.
    Other values are returned unchanged.

    Args:
        key: Dotted name of the option.
        value: Value of the option.
    """
    if key == "trainer.devices" and value is not None:
        return count_devices(value)
    if key == "model.init_from" and isinstance(value, str):
        return os.path.realpath(value)
    return value


def _format(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 3]}..."
