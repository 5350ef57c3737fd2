"""Checks that a checkpoint matches the task, settings and data that resume or evaluate it."""

from collections.abc import Mapping
from typing import Any

from fourfold.checkpoints.format import as_list, flatten
from fourfold.errors import InputError

# Fields of a config that do not change a model in evaluation.
TRAINING_ONLY = ("dropout", "attn_dropout", "ff_dropout", "drop_path", "head_dropout", "init")


def check_same_task(
    saved: Mapping[str, Any], task_class: str, artifacts: Mapping[str, Any]
) -> None:
    """Check that a checkpoint has the current task, tokenizer and class names.

    Args:
        saved: Section `fourfold` of the checkpoint (see `checkpoints/format.py`).
        task_class: Import path of the task (LightningModule) that reads the checkpoint.
        artifacts: Values of the current DataModule that inference needs, such as the tokenizer and
            the class names. If the mapping is empty, tokenizer and class names are not compared.

    Raises:
        InputError: The task, the tokenizer or the class names differ.
    """
    written_by = saved["task"]["class"]
    if written_by != task_class:
        raise InputError(
            f"must be {written_by}, which wrote the checkpoint, got {task_class}", option="--model"
        )
    for name in ("tokenizer", "class_names"):
        if artifacts and artifacts.get(name) != saved["data"].get(name):
            raise InputError(
                f"gives another {name} than the one in the checkpoint", option="--data"
            )


def check_same_settings(
    saved: Mapping[str, Any], current: Mapping[str, Any], *, training: bool
) -> None:
    """Check that the settings in a checkpoint equal those of the task that reads the checkpoint.

    Some settings, such as the number of heads or the learning rate, can differ without a shape
    mismatch in the state dict. `init_from` (path of the weights that the training started from) and
    settings that the checkpoint lacks are not compared.

    Args:
        saved: Settings in the checkpoint: `config` of the model, and the arguments of the task's
            constructor by name.
        current: The same settings of the task that reads the checkpoint.
        training: True if a training resumes, for which all settings are compared. False for an
            evaluation, for which only those are compared that change the output of the model.

    Raises:
        InputError: A setting differs.
    """
    for section in current if training else ("config", "tuning"):
        if section == "init_from":
            continue  # these weights have been trained since
        old = _flat_section(saved.get(section))
        for key, value in _flat_section(current[section]).items():
            affects_model = section == "config" or key in ("lora_rank", "lora_alpha")
            if not training and (key.split(".")[-1] in TRAINING_ONLY or not affects_model):
                continue
            if key in old and as_list(old[key]) != as_list(value):
                name = f"model.{section}.{key}".rstrip(".")
                raise InputError(
                    f"must be {old[key]}, as in the checkpoint, got {value}", option=name
                )


def _flat_section(section: Any) -> dict[str, Any]:
    return flatten(section) if isinstance(section, Mapping) else {"": section}
