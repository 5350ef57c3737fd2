"""Device and numeric precision of a model in an inference command."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from fourfold.core.precision import PRECISIONS
from fourfold.core.validation import check_choice
from fourfold.errors import InputError


def choose_device(name: str) -> torch.device:
    """Return the device called `name`; "auto" means the first GPU, or the CPU without a GPU.

    Raises:
        InputError: The name is not that of a device, or this machine has no such device.
    """
    n_gpus = torch.cuda.device_count()
    gpus = ["cuda", *(f"cuda:{number}" for number in range(n_gpus))] if n_gpus else []
    check_choice("--device", name, ("auto", "cpu", *gpus))
    return torch.device(name if name != "auto" else "cuda" if gpus else "cpu")


def move_model(module: nn.Module, device: torch.device, precision: str) -> None:
    """Move a module to a device, and convert its weights to the data type of a precision.

    A mixed precision, such as bf16-mixed, does not change the data type of the weights.

    Raises:
        InputError: The device is a CPU, and the precision is one of those that use float16.
    """
    dtypes = PRECISIONS[precision]
    if dtypes.compute == "float16" and device.type == "cpu":
        raise InputError(
            f"must be one that a CPU computes, such as bf16-mixed, got {precision}",
            option="--precision",
        )
    is_mixed = dtypes.weights != dtypes.compute
    module.to(device, None if is_mixed else getattr(torch, dtypes.weights))


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Return torch.autocast for a mixed precision, otherwise a context that does nothing."""
    dtypes = PRECISIONS[precision]
    if dtypes.weights == dtypes.compute:
        return nullcontext()
    return torch.autocast(device.type, getattr(torch, dtypes.compute))
