"""Loading, device and numeric precision of a model in an inference command."""

import sys
from argparse import Namespace
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from fourfold.checkpoints.load import load
from fourfold.core import precision
from fourfold.core.validation import check_choice
from fourfold.errors import InputError
from fourfold.hub.directory import resolve_path
from fourfold.layers.base_model import Model
from fourfold.layers.quantization import quantize


def load_model(
    checkpoint: str, options: Namespace
) -> tuple[Path, Model, AbstractContextManager[object]]:
    """Return the path of a checkpoint, its model, and the context in which the model is to run.

    Raises:
        InputError: The checkpoint is invalid, there is no such device, or the precision is one of
            those that use float16, and the device is a CPU.
    """
    device = choose_device(options.device)
    name = precision.resolve_precision(options.precision, device, "--precision")
    if options.precision == precision.AUTO:
        reason = precision.describe_bf16(device)
        print(f"--precision {precision.AUTO}: {name}, since {reason}", file=sys.stderr)
    elif warning := precision.slow_precision(name, device, "--precision"):
        print(warning, file=sys.stderr)
    weights, compute = (getattr(torch, dtype) for dtype in precision.PRECISIONS[name])
    if compute == torch.float16 and device.type == "cpu":
        message = f"must be one that a CPU computes, such as bf16-mixed, got {name}"
        raise InputError(message, option="--precision")
    path = resolve_path(checkpoint)
    model = load(path, classes=tuple(options.allow_class))
    is_mixed = weights != compute  # the data type of the weights then does not change
    model.to(device, None if is_mixed else weights)
    quantize(model, options.quantize, "--quantize")
    return path, model, torch.autocast(device.type, compute) if is_mixed else nullcontext()


def choose_device(name: str) -> torch.device:
    """Return the device called `name`; "auto" means the first GPU, or the CPU without a GPU.

    Raises:
        InputError: The name is not that of a device, or this machine has no such device.
    """
    n_gpus = torch.cuda.device_count()
    gpus = ["cuda", *(f"cuda:{number}" for number in range(n_gpus))] if n_gpus else []
    check_choice("--device", name, ("auto", "cpu", *gpus))
    return torch.device(name if name != "auto" else "cuda" if gpus else "cpu")
