"""Choice of the numeric precision of `fit`, `validate`, `test` and `predict`, with warnings."""

import sys
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from fourfold.commands.config_files import options
from fourfold.core.precision import (
    ALIASES,
    AUTO,
    PRECISIONS,
    describe_bf16,
    resolve_precision,
    slow_precision,
)

OPTION = "trainer.precision"
_print = rank_zero_only(print)


def device_kind(accelerator: Any) -> str:
    """Return "cuda" or "cpu", the device that a value of `trainer.accelerator` selects."""
    return "cuda" if accelerator != "cpu" and torch.cuda.is_available() else "cpu"


def set_precision(
    config: Any, arguments: list[str], recorded: Mapping[str, Any] | None, *, trains: bool
) -> None:
    """Replace "auto" in `trainer.precision`, print the choice, and warn of a slow precision.

    A resumed training keeps the precision that its config.yaml records. An evaluation of a model
    that was trained with "auto" chooses again, unless the command line names a precision.

    Args:
        config: All options of the command, changed in place. The choice for "auto" is also stored
            in `auto_precision`, which is None if the precision was given.
        arguments: Options on the command line.
        recorded: Content of the config.yaml of the training that is resumed, if any.
        trains: True for `fit`.
    """
    trainer = config["trainer"]
    device = device_kind(trainer["accelerator"])
    given = ALIASES.get(str(trainer["precision"]), trainer["precision"])
    chosen = config["auto_precision"]
    was_auto = chosen is not None and given == chosen and OPTION not in dict(options(arguments))
    config["auto_precision"] = given if was_auto else None
    if given == AUTO or (was_auto and not trains):
        earlier = (recorded or {}).get("trainer", {}).get("precision", AUTO) if trains else AUTO
        given = trainer["precision"] = resolve_precision(earlier, device)
        config["auto_precision"] = given
        is_new = earlier == AUTO
        reason = f"since {describe_bf16(device)}" if is_new else "as when the training was started"
        _print(f"{OPTION} {AUTO}: {given}, {reason}", flush=True)
    if given in PRECISIONS and (warning := slow_precision(given, device, OPTION)):
        _print(warning, file=sys.stderr, flush=True)


def set_matmul_precision(config: Any, recorded: Mapping[str, Any]) -> None:
    """Set the precision of fp32 matrix products; print it if "auto" means TF32.

    A resumed training keeps the value that its config.yaml records, unless another one is given.
    `config` is changed in place; the other arguments are those of `set_precision`.
    """
    option = "float32_matmul_precision"
    if config[option] == AUTO:
        config[option] = recorded.get(option, AUTO)
    chosen = config[option]
    if chosen == AUTO:
        on_gpu = device_kind(config["trainer"]["accelerator"]) == "cuda"
        chosen = "high" if on_gpu else "highest"
        if on_gpu:
            _print(f"{option} {AUTO}: high (TF32); {option} highest is fp32", flush=True)
    torch.set_float32_matmul_precision(chosen)
