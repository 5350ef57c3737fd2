"""Options of fit, validate, test and predict besides model, data and trainer, and their checks.

All four commands accept all of these options, so that the config.yaml of a training can be given to
each of them.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from lightning import LightningDataModule, Trainer
from lightning.pytorch.accelerators import AcceleratorRegistry
from lightning.pytorch.strategies import StrategyRegistry

from fourfold.callbacks.checkpointing.run_checkpoints import CheckpointOptions
from fourfold.core.validation import check_choice
from fourfold.data.loading.datamodule import ResumableDataModule
from fourfold.errors import InputError

# Least values of Trainer arguments that Lightning does not check.
TRAINER_MINIMA = {
    "accumulate_grad_batches": 1,
    "check_val_every_n_epoch": 1,
    "num_nodes": 1,
    "log_every_n_steps": 0,
    "gradient_clip_val": 0,
    "num_sanity_val_steps": -1,
}
# Processes allowed on a CPU with fewer cores, to rehearse a training on several devices.
MAX_CPU_PROCESSES = 8


# Name: type, default, help.
OPTIONS: dict[str, tuple[Any, Any, str]] = {
    "run_dir": (
        str | None,
        None,
        "Directory; default trainer.default_root_dir, or runs/FOLDER/STEM of the config file.",
    ),
    "resume": (
        Literal["auto", "must", "never"],
        "auto",
        "Resume from RUN_DIR/checkpoints/last.ckpt if it exists (auto), must exist or must not.",
    ),
    "average_last_checkpoints": (
        int,
        0,
        "Average the weights of the last N snapshots when training ends.",
    ),
    "average_every_n_steps": (
        int | None,
        None,
        "Steps between snapshots; default: one snapshot per epoch.",
    ),
    "ema_decay": (float | None, None, "Decay of an exponential moving average of the weights."),
    "compile": (bool, False, "Compile each block with torch.compile; the first step is slow."),
    "float32_matmul_precision": (
        Literal["highest", "high", "medium"],
        "highest",
        "Precision of fp32 matrix products on a GPU: high is TF32.",
    ),
    "wandb": (
        Literal["off", "offline", "online", "auto"],
        "off",
        "Weights & Biases; auto means online if there is an API key.",
    ),
    "wandb_project": (str, "fourfold", "W&B project."),
    "wandb_name": (str | None, None, "Name of the W&B run; default: the run directory's name."),
    "wandb_group": (str | None, None, "W&B group, such as the seeds of a recipe."),
    "wandb_tags": (list[str], [], "Tags of the W&B run."),
    "wandb_checkpoints": (bool, False, "Upload last.ckpt, best.ckpt and average.ckpt to W&B."),
    "log_samples": (
        bool,
        True,
        "Log sample outputs, attention maps and a confusion matrix after training and in a test.",
    ),
    "tensorboard": (bool, True, "Write TensorBoard files if tensorboard is installed."),
    "log_every_seconds": (
        float,
        10.0,
        "Seconds between lines of progress if the output is not a terminal.",
    ),
    "allow_class": (
        list[str],
        [],
        "Import paths of your own classes that a checkpoint of model.init_from may name.",
    ),
}


def add_options(parser: Any) -> None:
    """Add all options to a parser of jsonargparse."""
    for name, (value_type, default, text) in OPTIONS.items():
        parser.add_argument(f"--{name}", type=value_type, default=default, help=text)
    parser.add_class_arguments(CheckpointOptions, "checkpoint")


def check_options(config: Any) -> None:
    """Check the values of options and of those Trainer arguments that Lightning does not check.

    Raises:
        InputError: A value is invalid, or two options contradict each other.
    """
    trainer = config["trainer"]
    check_numbers(trainer)
    _avoid_mps(trainer)
    _check_names(trainer)
    _check_devices(trainer)
    _check_averaging(config)
    if config["wandb_checkpoints"] and config["wandb"] == "off":
        raise InputError("needs --wandb offline, online or auto", option="--wandb_checkpoints")
    for name in ("average_last_checkpoints", "wandb_checkpoints"):
        if config[name] and trainer["enable_checkpointing"] is False:
            raise InputError("needs trainer.enable_checkpointing, got false", option=f"--{name}")
    for name in ("average_every_n_steps", "checkpoint.every_n_steps"):
        _check_minimum(name, config[name], 1)
    for name in ("checkpoint.save_top_k", "checkpoint.every_n_epochs", "log_every_seconds"):
        _check_minimum(name, config[name], 0)


def _check_minimum(name: str, value: float | None, minimum: float) -> None:
    if value is not None and not value >= minimum:  # also rejects NaN
        raise InputError(f"must be at least {minimum}, got {value}", option=name)


def _check_averaging(config: Any) -> None:
    decay = config["ema_decay"]
    if decay is not None and not 0.0 < decay < 1.0:
        raise InputError(f"must lie between 0 and 1, got {decay}", option="--ema_decay")
    _check_minimum("average_last_checkpoints", config["average_last_checkpoints"], 0)
    if decay is not None and config["average_last_checkpoints"]:
        raise InputError("cannot be combined with --average_last_checkpoints", option="--ema_decay")
    if config["average_every_n_steps"] is not None and not config["average_last_checkpoints"]:
        raise InputError("needs --average_last_checkpoints", option="--average_every_n_steps")


def check_seed(name: str, seed: int | bool | None) -> None:
    """Check that a seed is one that numpy accepts; Lightning also takes None and a bool.

    Raises:
        InputError: The seed is out of range.
    """
    if seed is not None and not 0 <= seed < 2**32:
        raise InputError(f"must lie between 0 and {2**32 - 1}, got {seed}", option=name)


def check_numbers(trainer: Any) -> None:
    """Check numbers among the Trainer's arguments that Lightning does not check.

    Raises:
        InputError: A number is too small.
    """
    for name, minimum in TRAINER_MINIMA.items():
        _check_minimum(f"trainer.{name}", trainer[name], minimum)


def _avoid_mps(trainer: Any) -> None:
    """Use the CPU instead of an Apple GPU, which lacks the fp64 of losses and metrics."""
    if not torch.backends.mps.is_available():
        return
    if trainer["accelerator"] == "auto":
        trainer["accelerator"] = "cpu"
    elif trainer["accelerator"] in ("mps", "gpu"):
        raise InputError(
            "must be cpu on this machine: losses are summed in fp64, which an Apple GPU lacks, got"
            f" {trainer['accelerator']}",
            option="trainer.accelerator",
        )


def _check_names(trainer: Any) -> None:
    accelerators = ["auto", "gpu", *sorted(AcceleratorRegistry.available_accelerators())]
    strategies = ["auto", *StrategyRegistry.available_strategies()]
    for name, choices in (("accelerator", accelerators), ("strategy", strategies)):
        value = trainer[name]
        if isinstance(value, str):
            check_choice(f"trainer.{name}", value, choices)


def count_devices(devices: Any) -> int | None:
    """Return the number of devices that `trainer.devices` names; None for all available ones.

    Raises:
        InputError: The value is neither a number nor a list of devices.
    """
    text = str(devices)
    listed = devices if isinstance(devices, list) else [item for item in text.split(",") if item]
    if len(listed) > 1 or isinstance(devices, list):
        return len(listed)
    if text in ("auto", "-1"):
        return None
    if text.isdecimal() and int(text):
        return int(text)
    raise InputError(
        f"must be a number of devices, a list of them or auto, got {devices!r}",
        option="trainer.devices",
    )


def _check_devices(trainer: Any) -> None:
    """Check that the devices exist; on a CPU each device is a process."""
    accelerator = trainer["accelerator"]
    uses_gpu = accelerator in ("gpu", "cuda") or (
        accelerator == "auto" and torch.accelerator.is_available()
    )
    if uses_gpu:
        available = torch.cuda.device_count()
        if accelerator != "auto" and not available:
            raise InputError(
                f"must be available, got {accelerator} on a machine without GPUs",
                option="trainer.accelerator",
            )
        limit = available
    elif accelerator in ("cpu", "auto"):
        if str(trainer["devices"]) == "auto":
            return
        limit = max(os.cpu_count() or 1, MAX_CPU_PROCESSES)
    else:
        return
    number = count_devices(trainer["devices"])
    if not uses_gpu and (number is None or not str(trainer["devices"]).isdecimal()):
        number = limit + 1  # neither -1 nor a list is a number of processes
    if number is not None and number > limit:
        raise InputError(
            f"must be a number from 1 to {limit} on this {'machine' if uses_gpu else 'CPU'}, got"
            f" {trainer['devices']}",
            option="trainer.devices",
        )


def check_resumable(content: Mapping[str, Any], path: str | Path, max_epochs: int | None) -> None:
    """Check that training can resume from the content of a checkpoint.

    Raises:
        InputError: The checkpoint has weights alone, or the training is beyond `max_epochs`.
    """
    if "optimizer_states" not in content or "loops" not in content:
        raise InputError(
            "the checkpoint contains weights, but no state of a training to resume; start from its"
            " weights with --model.init_from",
            file=path,
        )
    epoch = content.get("epoch")
    if isinstance(epoch, int) and max_epochs not in (None, -1) and epoch > int(max_epochs or 0):
        raise InputError(
            f"must be at least {epoch}, the number of epochs that {path} was trained for, got"
            f" {max_epochs}",
            option="--trainer.max_epochs",
        )


def check_validation_interval(trainer: Trainer, data: LightningDataModule) -> None:
    """Check that an epoch has at least `val_check_interval` batches.

    Raises:
        InputError: It has fewer, so that Lightning would never validate.
    """
    interval = trainer.val_check_interval
    counts_in_epoch = trainer.check_val_every_n_epoch is not None and not getattr(
        trainer, "fast_dev_run", False
    )
    if not isinstance(interval, int) or isinstance(interval, bool) or not counts_in_epoch:
        return
    if not isinstance(data, ResumableDataModule) or not trainer.limit_val_batches:
        return
    limit = trainer.limit_train_batches
    n_batches = data.n_train_batches()
    n_batches = min(n_batches, limit) if isinstance(limit, int) else int(n_batches * (limit or 1.0))
    if interval > n_batches:
        raise InputError(
            f"must be at most {n_batches}, the batches of an epoch, got {interval}; with"
            " --trainer.check_val_every_n_epoch null it counts across epochs",
            option="--trainer.val_check_interval",
        )
