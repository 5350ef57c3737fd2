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
    if given != AUTO and (trains or not was_auto):
        if given in PRECISIONS and (warning := slow_precision(given, device, OPTION)):
            _print(warning, sys.stderr)
        return
    fast, because = resolve_precision(AUTO, device), describe_bf16(device)
    earlier = (recorded or {}).get("trainer", {}).get("precision", fast) if trains else fast
    trainer["precision"] = config["auto_precision"] = kept = resolve_precision(earlier, device)
    if kept == fast:
        _print(f"{OPTION} {AUTO}: {kept}, since {because}", sys.stdout)
    else:
        text = f"{OPTION}: the training was started with {kept} and keeps it, although {fast}"
        _print(f"{text} is faster here: {because}", sys.stderr)


def _print(text: str, stream: Any) -> None:
    """Print a line on the first rank."""
    if getattr(rank_zero_only, "rank", 0) == 0:
        print(text, file=stream, flush=True)
