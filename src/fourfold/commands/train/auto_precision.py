"""Choice of the numeric precision of `fit`, `validate`, `test` and `predict`, with warnings.

A warning is printed if the precision is slow on the device.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from fourfold.commands.train.config_files import entries, is_given, read_tree
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
    config: Any, arguments: list[str], checkpoint: Path | None, *, trains: bool
) -> None:
    """Replace "auto" in `trainer.precision`, print the choice, and warn of a slow precision.

    A resumed training keeps the precision that its config.yaml records. An evaluation of a model
    that was trained with "auto" chooses again, unless the command line names a precision.

    Args:
        config: All options of the command, changed in place. The choice for "auto" is also stored
            in `auto_precision`, which is None if the precision was given.
        arguments: Options on the command line.
        checkpoint: Checkpoint of a training to resume, or weights to evaluate.
        trains: True for `fit`.
    """
    trainer = config["trainer"]
    device = device_kind(trainer["accelerator"])
    given = ALIASES.get(str(trainer["precision"]), trainer["precision"])
    chosen = config["auto_precision"]
    was_auto = chosen is not None and given == chosen and not is_given(OPTION, arguments)
    config["auto_precision"] = None
    if given == AUTO or (was_auto and not trains):
        fast = resolve_precision(AUTO, device)
        recorded = recorded_precision(checkpoint) if trains and checkpoint else None
        trainer["precision"] = config["auto_precision"] = recorded or fast
        because = describe_bf16(device)
        if recorded and recorded != fast:
            _print(
                f"{OPTION}: the training was started with {recorded} and keeps it, although {fast}"
                f" is faster here: {because}",
                is_warning=True,
            )
        else:
            _print(f"{OPTION} {AUTO}: {trainer['precision']}, since {because}")
        return
    if was_auto:
        config["auto_precision"] = given
    if given in PRECISIONS and (warning := slow_precision(given, device, OPTION)):
        _print(warning, is_warning=True)


def recorded_precision(checkpoint: Path) -> str | None:
    """Return the precision in the config.yaml of the run directory that contains a checkpoint.

    The result is a key of `PRECISIONS`, or None if the file or its precision is missing.
    """
    file = checkpoint.absolute().parents[1] / "config.yaml"
    if not file.is_file():
        return None
    values = {key: getattr(node, "value", None) for key, _, node in entries(read_tree(file))}
    name = ALIASES.get(str(values.get(OPTION)), values.get(OPTION))
    return name if name in PRECISIONS else "32-true" if name == "null" else None


def _print(text: str, *, is_warning: bool = False) -> None:
    """Print a line on the first rank, to stdout or, for a warning, to stderr."""
    if getattr(rank_zero_only, "rank", 0) == 0:
        print(text, file=sys.stderr if is_warning else sys.stdout, flush=True)
