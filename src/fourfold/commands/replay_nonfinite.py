"""`fourfold replay`: find the module whose output was not finite when a training stopped."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from fourfold.checkpoints.files import read_file
from fourfold.commands.infer.devices import autocast, choose_device, move_model
from fourfold.commands.option_parser import OptionParser
from fourfold.core.precision import PRECISIONS, canonical_precision
from fourfold.data.loading import batches
from fourfold.errors import InputError
from fourfold.tasks import Task
from fourfold.tasks.loading import task_from_checkpoint

DESCRIPTION = """\
A training whose loss is not finite stops before the step and saves the batch and the
weights in RUN_DIR/nonfinite_step=N.pt. This command runs the batch again, with the same
dropout, in the same precision and then in fp32, and names the first module whose output
is not finite."""


def main(argv: Sequence[str]) -> int:
    """Rerun the batch that stopped a training, and print the first module with Inf or NaN outputs.

    Args:
        argv: Path of the file that the stopped training wrote, and options such as `--device`.

    Returns:
        The exit code 0, even if an output is Inf or NaN.

    Raises:
        InputError: An option is invalid, or the file was not written by a training that stopped.
    """
    parser = OptionParser(prog="fourfold replay", description=DESCRIPTION)
    parser.add_argument("file", metavar="RUN_DIR/nonfinite_step=N.pt")
    parser.add_argument("--device", help="auto, cpu, cuda or cuda:N; default: the training's")
    parser.add_argument("--precision", choices=tuple(PRECISIONS), help="default: the training's")
    parser.add_allow_class()
    options = parser.parse_args(list(argv))
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
