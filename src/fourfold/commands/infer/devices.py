"""Loading, device and numeric precision of a model in an inference command."""

import sys
from argparse import Namespace
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import nn

from fourfold.checkpoints.load import load
from fourfold.core.precision import (
    AUTO,
    PRECISIONS,
    describe_bf16,
    resolve_precision,
    slow_precision,
)
from fourfold.core.validation import check_choice
from fourfold.errors import InputError
from fourfold.hub.directory import resolve_path
from fourfold.layers.base_model import Model
from fourfold.layers.quantization import quantize


def load_model(
    checkpoint: str, options: Namespace
) -> tuple[Path, Model, AbstractContextManager[object]]:
    """Return the path of a checkpoint, its model, and the context in which the model is to run."""
    device = choose_device(options.device)
    precision = resolve_precision(options.precision, device, "--precision")
    if options.precision == AUTO:
        print(f"--precision {AUTO}: {precision}, since {describe_bf16(device)}", file=sys.stderr)
    elif warning := slow_precision(precision, device, "--precision"):
        print(warning, file=sys.stderr)
    path = resolve_path(checkpoint)
    model = load(path, classes=tuple(options.allow_class))
    move_model(model, device, precision)
    quantize(model, options.quantize, "--quantize")
    return path, model, autocast(device, precision)


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
