"""RunOptions of `fit`, `validate`, `test` and `predict`; checks of options and Trainer arguments.

All four commands accept all of these options, so that the config.yaml of a training can be given to
each of them.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from fourfold.callbacks.checkpointing.run_checkpoints import CheckpointOptions
from fourfold.core.validation import check_range
from fourfold.errors import InputError

# Least values of options that neither Lightning nor jsonargparse checks.
MINIMA = {
    "trainer.accumulate_grad_batches": 1,
    "average_last_checkpoints": 0,
    "average_every_n_steps": 1,
    "checkpoint.every_n_steps": 1,
    "checkpoint.every_n_epochs": 0,
    "checkpoint.save_top_k": 0,
    "log_every_seconds": 0,
}


@dataclass(frozen=True)
class RunOptions:
    """Options of a run: directory, weight averaging, precision and loggers.

    Args:
        run_dir: Run directory. The default is trainer.default_root_dir if that is given. Otherwise
            the default is runs/FOLDER/NAME for a first config file FOLDER/NAME.yaml.
        resume: "auto" resumes from RUN_DIR/checkpoints/last.ckpt if that file exists. "must" fails
            without that file, and "never" fails if it exists.
        average_last_checkpoints: Number N of snapshots of the weights; the average of the last N
            snapshots is saved when training ends. 0 saves no average.
        average_every_n_steps: Optimizer steps between snapshots; default: one snapshot per epoch.
        ema_decay: Decay of an exponential moving average of the weights; default: no average.
        auto_micro_batch: After an out-of-memory error, divide batches into micro-batches with the
            same gradient.
        compile: Compile each block with torch.compile; the first step is slow.
        float32_matmul_precision: Precision of fp32 matrix products, an argument of
            torch.set_float32_matmul_precision; "high" uses TF32 on a GPU. "auto" means "high" on a
            GPU and "highest" on a CPU.
        auto_precision: The trainer.precision that "auto" chose, which `fit` writes to config.yaml.
            If the two still agree, validate, test and predict choose again for their device.
        wandb: Mode of Weights & Biases (W&B); "auto" means online if there is an API key.
        wandb_project: W&B project.
        wandb_name: Name of the W&B run; default: the run directory's name.
        wandb_group: Name of a W&B group, for example of the runs with different seeds.
        wandb_tags: Tags of the W&B run.
        wandb_checkpoints: Upload last.ckpt, best.ckpt and average.ckpt to W&B.
        log_samples: Log sample outputs, attention maps and a confusion matrix after training and in
            a test.
        look: Without effect, as check_memory; `fourfold look` writes the page of a run.
        tensorboard: Write TensorBoard files if tensorboard is installed.
        log_every_seconds: Seconds between lines of progress if the output is not a terminal.
        check_memory: Without effect; accepted because the config.yaml of earlier versions has it.
        allow_class: Import paths of your own classes of models and tasks. A class outside of
            fourfold is loaded from the checkpoint given by model.init_from only if it is listed.
    """

    run_dir: str | None = None
    resume: Literal["auto", "must", "never"] = "auto"
    average_last_checkpoints: int = 0
    average_every_n_steps: int | None = None
    ema_decay: float | None = None
    auto_micro_batch: bool = False
    compile: bool = False
    float32_matmul_precision: Literal["auto", "highest", "high", "medium"] = "auto"
    auto_precision: str | None = None
    wandb: Literal["off", "offline", "online", "auto"] = "off"
    wandb_project: str = "fourfold"
    wandb_name: str | None = None
    wandb_group: str | None = None
    wandb_tags: list[str] = field(default_factory=list)
    wandb_checkpoints: bool = False
    log_samples: bool = True
    look: bool = False
    tensorboard: bool = True
    log_every_seconds: float = 10.0
    check_memory: bool = True
    allow_class: list[str] = field(default_factory=list)


def add_options(parser: Any) -> None:
    """Add the fields of RunOptions, and those of CheckpointOptions as `--checkpoint.FIELD`."""
    parser.add_class_arguments(RunOptions, instantiate=False)
    parser.add_class_arguments(CheckpointOptions, "checkpoint")


def check_options(config: Any) -> None:
    """Check the values of options and of those Trainer arguments that Lightning does not check.

    On a machine with an Apple GPU, "auto" in `trainer.accelerator` is changed to "cpu" in place.

    Raises:
        InputError: A value is invalid, or two options contradict each other.
    """
    trainer = config["trainer"]
    check_numbers(config)
    if trainer["accelerator"] == "auto" and torch.backends.mps.is_available():
        trainer["accelerator"] = "cpu"  # losses are summed in fp64, which an Apple GPU lacks
    if config["checkpoint.async_save"] and config["checkpoint.format"] != "sharded":
        raise InputError("needs --checkpoint.format sharded", option="--checkpoint.async_save")
    if config["ema_decay"] is not None:
        check_range("--ema_decay", config["ema_decay"], above=0, below=1)
        if config["average_last_checkpoints"]:
            raise InputError("excludes --average_last_checkpoints", option="--ema_decay")


def check_numbers(config: Any) -> None:
    """Raise InputError if a number in a parsed config is NaN or below its minimum in `MINIMA`."""
    if config["trainer"]["val_check_interval"] == 0:
        message = "must be a number of batches from 1, or a fraction above 0 of an epoch, got 0"
        raise InputError(message, option="trainer.val_check_interval")
    for name, minimum in MINIMA.items():
        value = config[name]
        if value is not None and not value >= minimum:  # also rejects NaN
            raise InputError(f"must be at least {minimum}, got {value}", option=name)


def count_devices(devices: Any) -> int | None:
    """Return the number of devices per node for a value of `trainer.devices`.

    The value is a count, a list of device indices, or a string with one of them. The result is None
    for "auto" and -1, which mean all available devices.
    """
    if isinstance(devices, list):
        return len(devices)
    text = str(devices)
    if text in ("auto", "-1"):
        return None
    if "," in text:
        return len([index for index in text.split(",") if index])  # "3," selects one device
    if text.isdecimal() and int(text):
        return int(text)
    message = f"must be a number of devices, a list of them or auto, got {devices!r}"
    raise InputError(message, option="trainer.devices")
