"""The options of fit, validate, test and predict that are neither model, data nor trainer.

All four accept all of them, so that the config.yaml of a training can be given to the others.
"""

import os
from dataclasses import dataclass
from typing import Any, Literal

import torch

from fourfold.commands.parser import OptionError
from fourfold.core.errors import InputError

# What the Trainer divides by, or takes for the opposite, without a word.
LEAST = {"accumulate_grad_batches": 1, "check_val_every_n_epoch": 1, "num_nodes": 1,
         "log_every_n_steps": 0, "gradient_clip_val": 0, "num_sanity_val_steps": -1}  # fmt: skip
MOST_PROCESSES = 8  # on a CPU with fewer cores, where two or three are a rehearsal for real devices


@dataclass(frozen=True)
class CheckpointOptions:
    """When to save, and what to keep.

    Args:
        monitor: Metric that decides which checkpoint is best; None takes the first there is of
            val/bleu, val/top1, val/loss.
        mode: Whether the least or the greatest is best; None goes by the metric's name.
        keep_best: How many of the best to keep; 0 keeps none.
        every_n_steps: Save last.ckpt also every so many optimizer steps; None only by epochs.
        every_n_epochs: Save last.ckpt every so many epochs; 0 never.
    """

    monitor: str | None = None
    mode: Literal["min", "max"] | None = None
    keep_best: int = 1
    every_n_steps: int | None = 1000
    every_n_epochs: int = 1


OPTIONS: dict[str, tuple[Any, Any, str]] = {
    "run_dir": (
        str | None,
        None,
        "Directory; default trainer.default_root_dir, or runs/FOLDER/STEM.",
    ),
    "resume": (
        Literal["auto", "must", "never"],
        "auto",
        "Whether to continue RUN_DIR/checkpoints/last.ckpt.",
    ),
    "average_last": (int, 0, "Average the weights of the last N snapshots when training ends."),
    "average_every_n_steps": (int | None, None, "Steps between snapshots; default: every epoch."),
    "ema_decay": (float | None, None, "Decay of an exponential moving average of the weights."),
    "compile": (bool, False, "Compile each block (torch.compile): the first steps take longer."),
    "fp32_products": (
        Literal["highest", "high", "medium"],
        "highest",
        "Precision of fp32 matrix products on a GPU: high is TF32, which torch leaves off.",
    ),
    "wandb": (
        Literal["off", "offline", "online", "auto"],
        "off",
        "Weights & Biases; auto means online where there is a key.",
    ),
    "wandb_project": (str, "fourfold", "Project in Weights & Biases."),
    "wandb_name": (str | None, None, "Name of the run there; default: the run directory's."),
    "wandb_group": (str | None, None, "Group of the run there, such as the seeds of a recipe."),
    "wandb_tags": (list[str], [], "Tags of the run there."),
    "wandb_checkpoints": (bool, False, "Send last.ckpt, best.ckpt and average.ckpt there, too."),
    "pictures": (
        bool,
        True,
        "Show samples, attention and a confusion matrix when training ends and in a test.",
    ),
    "tensorboard": (bool, True, "Write TensorBoard files where tensorboard is installed."),
    "progress_seconds": (float, 10.0, "Seconds between lines where there is no terminal."),
}


def add_options(parser: Any) -> None:
    """Add all of them to a parser of jsonargparse."""
    for name, (kind, default, text) in OPTIONS.items():
        parser.add_argument(f"--{name}", type=kind, default=default, help=text)
    parser.add_class_arguments(CheckpointOptions, "checkpoint")


def check_options(config: Any) -> None:
    """Refuse values that no run can have.

    Raises:
        InputError: Names the option and its value.
    """
    check_numbers(config["trainer"])
    _leave_mps(config["trainer"])
    _check_processes(config["trainer"])
    _check_averages(config)
    if config["wandb_checkpoints"] and config["wandb"] == "off":
        raise InputError("wandb_checkpoints needs --wandb offline, online or auto")
    idle = [name for name in ("average_last", "wandb_checkpoints") if config[name]]
    if idle and config["trainer"]["enable_checkpointing"] is False:
        raise InputError(f"{idle[0]} needs checkpoints, but enable_checkpointing is false")
    for name in ("average_every_n_steps", "checkpoint.every_n_steps"):
        if config[name] is not None and config[name] < 1:
            raise InputError(f"{name} is {config[name]}, but must be at least 1")
    for name in ("checkpoint.keep_best", "checkpoint.every_n_epochs", "progress_seconds"):
        if not config[name] >= 0:
            raise InputError(f"{name} is {config[name]}, but must not be negative")


def _check_averages(config: Any) -> None:
    decay = config["ema_decay"]
    if decay is not None and not 0.0 < decay < 1.0:
        raise InputError(f"ema_decay is {decay}, but must lie between 0 and 1")
    if config["average_last"] < 0:
        raise InputError(f"average_last is {config['average_last']}, but must not be negative")
    if decay is not None and config["average_last"]:
        raise InputError("ema_decay and average_last are two ways to average weights: give one")
    if config["average_every_n_steps"] is not None and not config["average_last"]:
        raise InputError("average_every_n_steps needs average_last: of how many the mean is")


def check_numbers(trainer: Any) -> None:
    """Refuse what the Trainer believes.

    Raises:
        InputError: Names the option and its value.
    """
    for name, least in LEAST.items():
        value = trainer[name]
        if value is not None and value < least:
            raise OptionError(f"trainer.{name}", f"is {value}, but must be at least {least}")


def _leave_mps(trainer: Any) -> None:
    """Losses and metrics are summed in double precision, which Apple's GPUs do not have.

    Raises:
        InputError: One was asked for.
    """
    if not torch.backends.mps.is_available():
        return
    if trainer["accelerator"] == "auto":
        trainer["accelerator"] = "cpu"
    elif trainer["accelerator"] in ("mps", "gpu"):
        raise OptionError(
            "trainer.accelerator",
            f"is {trainer['accelerator']}, but losses are summed in double precision, which an"
            " Apple GPU does not have: cpu",
        )


def _check_processes(trainer: Any) -> None:
    """On a CPU each device is a process with the model and the data in it.

    Raises:
        InputError: It is no number, or there are more than any machine would start for good.
    """
    given, accelerator = str(trainer["devices"]), trainer["accelerator"]
    on_cpu = accelerator == "cpu" or (
        accelerator == "auto" and not torch.accelerator.is_available()
    )
    if not on_cpu or given == "auto":
        return
    most = max(os.cpu_count() or 1, MOST_PROCESSES)
    if not given.isdecimal() or not 1 <= int(given) <= most:
        raise OptionError(
            "trainer.devices", f"is {given}, but on this CPU must be a number from 1 to {most}"
        )
