"""Checks that a checkpoint matches the task, settings and data that it is used with."""

from collections.abc import Mapping
from typing import Any

from fourfold.checkpoints.classes import public_path
from fourfold.checkpoints.schema import as_list, flatten
from fourfold.errors import InputError

# Fields of a config that do not change a model in evaluation.
TRAINING_ONLY = ("dropout", "attn_dropout", "ff_dropout", "drop_path", "head_dropout", "init")


def check_same_task(
    saved: Mapping[str, Any], task_class: str, artifacts: Mapping[str, Any]
) -> None:
    """Check that the task class, tokenizer and class names of a checkpoint equal the current ones.

    `saved` is the section `fourfold` of the checkpoint, and `artifacts` are those of the current
    DataModule. If they are empty, tokenizer and class names are not compared.
    """
    written_by = public_path(saved["task"]["class"])
    if written_by != task_class:
        message = f"must be {written_by}, which wrote the checkpoint, got {task_class}"
        raise InputError(message, option="--model")
    for name in ("tokenizer", "class_names", "multi_label"):
        if artifacts and artifacts.get(name) != saved["data"].get(name):
            message = f"gives another {name} than the one in the checkpoint"
            raise InputError(message, option="--data")


def check_same_settings(
    saved: Mapping[str, Any], current: Mapping[str, Any], *, training: bool
) -> None:
    """Check that the settings in a checkpoint equal those of the task that reads the checkpoint.

    `init_from` and settings that the checkpoint lacks are not compared.

    Args:
        saved: Settings in the checkpoint: the fields of the model's config under the key `config`,
            and the arguments of the task's constructor.
        current: Settings of the task that reads the checkpoint, with the same keys.
        training: True to compare all settings, for a training that resumes. False to compare only
            the settings that change the output of the model, for an evaluation.
    """
    old = flatten(saved)
    for key, value in flatten(current).items():
        section, name = key.partition(".")[0], key.rpartition(".")[2]
        changes_output = section == "config" and name not in TRAINING_ONLY
        is_compared = training or changes_output or key in ("tuning.lora_rank", "tuning.lora_alpha")
        is_compared &= section != "init_from"  # the checkpoint has its own weights
        if is_compared and as_list(old.get(key, value)) != as_list(value):
            message = f"must be {old[key]}, as in the checkpoint, got {value}"
            if training and section in ("optimizer", "schedule"):
                message += "; another --run_dir starts a new training, with --model.init_from from"
                message += " these weights"
            raise InputError(message, option=f"model.{key}")
