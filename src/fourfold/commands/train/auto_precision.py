"""Choice of the numeric precision of `fit`, `validate`, `test` and `predict`, with warnings."""

import sys
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from fourfold.commands.config_files import is_given
from fourfold.core.precision import (
    ALIASES,
    AUTO,
    PRECISIONS,
    describe_bf16,
    resolve_precision,
    slow_precision,
)

OPTION = "trainer.precision"


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
    was_auto = chosen is not None and given == chosen and not is_given(OPTION, arguments)
    config["auto_precision"] = given if was_auto else None
    if given == AUTO or (was_auto and not trains):
        earlier = (recorded or {}).get("trainer", {}).get("precision", AUTO) if trains else AUTO
        given = trainer["precision"] = resolve_precision(earlier, device)
        config["auto_precision"] = given
        is_new = earlier == AUTO
        reason = f"since {describe_bf16(device)}" if is_new else "as when the training was started"
        _print(f"{OPTION} {AUTO}: {given}, {reason}", sys.stdout)
    if given in PRECISIONS and (warning := slow_precision(given, device, OPTION)):
        _print(warning, sys.stderr)


@rank_zero_only
def _print(text: str, stream: Any) -> None:
    print(text, file=stream, flush=True)
