"""Where and in what precision a checkpoint is used."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from fourfold.core.errors import InputError

TYPES = {"64": torch.float64, "32": torch.float32, "bf16": torch.bfloat16, "16": torch.float16}


def choose_device(name: str) -> torch.device:
    """The device called `name`; auto is a GPU where there is one.

    Raises:
        InputError: There is no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"--device is {name}, but must be auto, cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"--device is {name}, but must be auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"--device is {name}, but there are {torch.cuda.device_count()} GPUs here")
    return device


def settle(module: nn.Module, device: torch.device, precision: str) -> None:
    """Move weights to the device; with a `-true` precision, into its number format too.

    Raises:
        InputError: The format cannot be computed with on that device.
    """
    bits, kind = precision.split("-")
    if bits == "16" and device.type == "cpu":
        raise InputError(f"--precision {precision} needs a GPU; use bf16-{kind} on a CPU")
    module.to(device, TYPES[bits] if kind == "true" else None)


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """What a `-mixed` precision computes in."""
    bits, kind = precision.split("-")
    return nullcontext() if kind == "true" else torch.autocast(device.type, TYPES[bits])
