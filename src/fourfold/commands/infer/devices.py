"""Choice of device and numeric precision for a loaded model, and its move to that device."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from fourfold.core.precision import PRECISIONS, canonical_precision
from fourfold.errors import InputError


def choose_device(name: str) -> torch.device:
    """Return the device called `name`; "auto" means the first GPU, or the CPU without a GPU.

    Raises:
        InputError: The name is not that of a device, or this machine has no such device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise InputError(f"must be auto, cpu, cuda or cuda:N, got {name!r}", option="--device")
    n_gpus = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= n_gpus:
        raise InputError(
            f"must be an available device, got {name} on a machine with {n_gpus} GPUs",
            option="--device",
        )
    return device


def move_model(module: nn.Module, device: torch.device, precision: str) -> None:
    """Move a module to a device, and convert its weights to the data type of a precision.

    Args:
        module: The module, changed in place.
        device: The device.
        precision: Name of a precision, such as bf16-true, or a short spelling, such as bf16. A
            mixed precision, such as bf16-mixed, leaves the data type of the weights as it is.

    Raises:
        InputError: The precision is unknown, or it computes in float16 and the device is a CPU.
    """
    dtypes = PRECISIONS[canonical_precision(precision, "--precision")]
    if dtypes.compute == "float16" and device.type == "cpu":
        raise InputError(
            f"must be one that a CPU computes, such as bf16-mixed, got {precision}",
            option="--precision",
        )
    is_mixed = dtypes.weights != dtypes.compute
    module.to(device, None if is_mixed else getattr(torch, dtypes.weights))


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Return torch.autocast for a mixed precision, or else a context manager that does nothing.

    Args:
        device: Device that the model is on.
        precision: Name of a precision, such as bf16-mixed, or a short spelling, such as bf16.

    Raises:
        InputError: The precision is unknown.
    """
    dtypes = PRECISIONS[canonical_precision(precision, "--precision")]
    if dtypes.weights == dtypes.compute:
        return nullcontext()
    return torch.autocast(device.type, getattr(torch, dtypes.compute))
