"""Comparison of the options of a resumed training with the config.yaml of its run directory.

All options are compared, except for those in `IGNORED`, so that a new option needs no entry here.
"""

import os
from pathlib import Path

import yaml

from fourfold.commands.config_files import LOADER, entries, read_tree
from fourfold.errors import InputError

# Dotted names of options that do not affect the results of a resumed training.
IGNORED = {
    *("allow_class", "ckpt_path", "config", "resume", "run_dir", "trainer.default_root_dir"),
    "auto_precision",  # the precision itself is compared
    *("log_every_seconds", "log_samples", "look", "tensorboard", "trainer.logger"),
    *("wandb", "wandb_checkpoints", "wandb_group", "wandb_name", "wandb_project", "wandb_tags"),
    *("checkpoint.every_n_epochs", "checkpoint.every_n_steps", "trainer.log_every_n_steps"),
    *("trainer.enable_autolog_hparams", "trainer.enable_model_summary", "trainer.profiler"),
    *("trainer.enable_progress_bar", "trainer.num_sanity_val_steps", "data.num_workers"),
    "data.tokenizer.file",  # the tokenizer itself is compared with that of the checkpoint
}
# Options that a training cannot change: a checkpoint does not name the class of the optimizer.
FIXED = ("model.init_from", "optimizer", "lr_scheduler")


def describe_changes(config: str, file: Path) -> list[str]:
    """Compare the options of a resumed training with those of the last start of the training.

    Args:
        config: All options as YAML.
        file: The config.yaml of the run directory, with the options of the last start.

    Returns:
        A line for each option that differs from the value in config.yaml, or one line if the file
        cannot be read.

    Raises:
        InputError: An option differs that a training cannot change.
    """
    current = _values(yaml.compose(config, LOADER))
    try:
        recorded = _values(read_tree(file))
    except InputError:
        recorded = {}
    if not recorded:
        return [f"changed options are not reported, since {file} is missing or damaged"]
    lines = []
    for key in {**recorded, **current}:
        old, new = recorded.get(key, "null"), current.get(key, "null")
        is_path = key.startswith("model.init_from")
        if key in IGNORED or old == new or (is_path and _same_path(old, new)):
            continue
        if key.startswith(FIXED):
            message = f"must be {old}, with which this training started, got {new}; another value"
            raise InputError(f"{message} needs another --run_dir", option=key)
        lines.append(f"resuming with {key}={new:.80}, recorded {old:.80}")
    return lines


def _same_path(old: str, new: str) -> bool:
    return "null" not in (old, new) and os.path.realpath(old) == os.path.realpath(new)


def _values(root: yaml.Node | None) -> dict[str, str]:
    """Return the value of each option as text, by dotted name; a list is one value."""
    values = {}
    for name, _, node in entries(root):
        if isinstance(node, yaml.ScalarNode):
            values[name] = node.value
        elif isinstance(node, yaml.SequenceNode) and node.value:
            node.flow_style = True
            values[name] = " ".join(yaml.serialize(node).split())
    return values
