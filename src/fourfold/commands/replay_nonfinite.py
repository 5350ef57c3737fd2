"""Rerun of a batch that stopped a training, to find the first module with Inf or NaN outputs."""

import math
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from fourfold.checkpoints.files import read_file
from fourfold.commands.infer.devices import autocast, choose_device, move_model
from fourfold.core.precision import canonical_precision
from fourfold.data.loading import batches
from fourfold.errors import InputError
from fourfold.tasks import Task
from fourfold.training.loading import task_from_checkpoint


def replay(options: Namespace) -> int:
    """Rerun the batch that stopped a training, and print the first module with Inf or NaN outputs.

    Args:
        options: Options of `fourfold replay`: `file`, which the stopped training wrote, `device`,
            `precision` and `allow_class`.

    Returns:
        The exit code 0, even if an output is Inf or NaN.

    Raises:
        InputError: An option is invalid, or the file was not written by a training that stopped.
    """
    content = read_file(options.file)
    record: Any = content.get("replay")
    try:
        batch = getattr(batches, record["batch_class"])(**record["batch"])
        seed, step = record["seed"], record["step"]
        device = choose_device(options.device or record["device"])
        precision = canonical_precision(options.precision or record["precision"])
    except (AttributeError, KeyError, TypeError) as error:
        message = "the file was not written by a stopped training"
        raise InputError(message, file=options.file) from error
    task = task_from_checkpoint(content, options.file, classes=tuple(options.allow_class)).train()
    print(f"step {step:,}, batch {batch.position} of epoch {batch.epoch}, {precision} on {device}")
    is_finite = run_batch(task, batch, seed, device, precision)
    if not is_finite and precision != "32-true":
        print("\nthe same batch in 32-true")
        run_batch(task, batch, seed, device, "32-true")
    return 0


def run_batch(
    task: Task[Any, Any], batch: Any, seed: int, device: torch.device, precision: str
) -> bool:
    """Run a forward pass, and print the loss and the first module with a non-finite output.

    Args:
        task: The task, in training mode.
        batch: Batch of the task, a named tuple.
        seed: Random seed of dropout, the same as in the training that stopped.
        device: Device that the model and the batch are moved to.
        precision: Name of the precision, a key of `PRECISIONS`.

    Returns:
        True if the loss is finite.
    """
    move_model(task, device, precision)
    dtype = next(task.model.parameters()).dtype
    batch = batch._make(
        x.to(device, dtype if x.is_floating_point() else x.dtype) if isinstance(x, Tensor) else x
        for x in batch
    )
    for name, weight in task.model.named_parameters():
        if not weight.isfinite().all():
            print(f"the weights are not finite: {name}")
            break
    names = {module: name for name, module in task.model.named_modules()}
    found: list[str] = []

    def record(module: nn.Module, inputs: Any, outputs: Any) -> None:
        results = outputs if isinstance(outputs, tuple) else (outputs,)
        largest = _largest(inputs)
        # Inner modules finish before outer ones, so that the first entry is the innermost module.
        if names.get(module) and math.isfinite(largest) and not math.isfinite(_largest(results)):
            found.append(f"model.{names[module]}, for inputs up to {largest:.3g}")

    torch.manual_seed(seed)
    with register_module_forward_hook(record), autocast(device, precision), torch.no_grad():
        total, count = task.step(batch)
    print(f"loss {float(total / max(1, int(count)))} over {int(count):,} targets")
    if found:
        print(f"first output that is not finite: {found[0]}")
    elif not total.isfinite():
        print("the outputs of all modules are finite, but the loss is not")
    else:
        print("everything is finite")
    return bool(total.isfinite())


def _largest(values: Sequence[Any]) -> float:
    """Return the largest absolute value in the floating-point tensors of a sequence.

    The result is 0 without such tensors, and NaN if an element is NaN.
    """
    floats = [x for x in values if isinstance(x, Tensor) and x.is_floating_point() and x.numel()]
    return float(torch.stack([x.abs().max().double() for x in floats]).max()) if floats else 0.0
