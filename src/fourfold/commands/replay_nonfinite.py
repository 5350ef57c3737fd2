"""`fourfold replay`: find the module whose output was not finite when a training stopped."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fourfold.commands.option_parser import OptionParser
from fourfold.core.precision import PRECISIONS
from fourfold.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from fourfold.tasks import Task

DESCRIPTION = """\
A training whose loss is not finite stops before the step and saves the batch and the
weights in RUN_DIR/nonfinite_step=N.pt. This command runs the batch again, with the same
dropout, in the same precision and then in fp32, and names the first module whose output
is not finite."""


def main(argv: Sequence[str]) -> int:
    """Repeat the batch that stopped a training, and print the first module with an Inf or NaN.

    Args:
        argv: Path of the file that the stopped training wrote, and options such as `--device`.

    Returns:
        The exit code 0, also if a value is not finite.

    Raises:
        InputError: An option is invalid, or the file was not written by a training that stopped.
    """
    parser = OptionParser(prog="fourfold replay", description=DESCRIPTION)
    parser.add_argument("file", metavar="RUN_DIR/nonfinite_step=N.pt")
    parser.add_argument("--device", help="auto, cpu, cuda or cuda:N; default: the training's")
    parser.add_argument("--precision", choices=tuple(PRECISIONS), help="default: the training's")
    parser.add_allow_class()
    options = parser.parse_args(list(argv))
    from fourfold.checkpoints.files import read_file
    from fourfold.commands.infer.devices import choose_device
    from fourfold.data.loading import batches
    from fourfold.tasks.loading import task_from_checkpoint

    content = read_file(options.file)
    record: Any = content.get("replay")
    try:
        batch = getattr(batches, record["batch_class"])(**record["batch"])
        seed, step = record["seed"], record["step"]
        device = choose_device(options.device or record["device"])
        precision = options.precision or record["precision"]
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


def run_batch(task: "Task", batch: Any, seed: int, device: "torch.device", precision: str) -> bool:
    """Run a batch, and print the loss and the first module with a non-finite output.

    Args:
        task: The task, in training mode.
        batch: Batch of the task, a named tuple.
        seed: Seed of dropout in the step that failed.
        device: Device that the model and the batch are moved to.
        precision: Name of the precision, a key of `PRECISIONS`.

    Returns:
        True if the loss is finite.
    """
    import torch

    from fourfold.commands.infer.devices import autocast, move_model

    move_model(task, device, precision)
    weight = next(task.model.parameters())
    batch = batch._make(
        x.to(device, weight.dtype if x.is_floating_point() else x.dtype)
        if isinstance(x, torch.Tensor)
        else x
        for x in batch
    )
    for name, weight in task.model.named_parameters():
        if not weight.isfinite().all():
            print(f"the weights are not finite: {name}")
            break
    torch.manual_seed(seed)
    with record_nonfinite(task.model) as found, autocast(device, precision), torch.no_grad():
        total, count = task.step(batch)
    print(f"loss {float(total / max(1, int(count)))} over {int(count):,} targets")
    if found:
        name, largest = found[0]
        print(f"first output that is not finite: model.{name}, for inputs up to {largest:.3g}")
    elif not total.isfinite():
        print("the outputs of all modules are finite, but the loss is not")
    else:
        print("everything is finite")
    return bool(total.isfinite())


@contextmanager
def record_nonfinite(model: "nn.Module") -> Iterator[list[tuple[str, float]]]:
    """Record the modules that turn finite inputs into non-finite outputs, in order of execution.

    Yields:
        A list that is empty at first. Each such module that runs in the `with` block appends a
        pair: its name, and the largest absolute value of its inputs.
    """
    from torch import Tensor

    found: list[tuple[str, float]] = []

    def make_hook(name: str) -> Any:
        def hook(module: "nn.Module", inputs: Any, outputs: Any) -> None:
            floats = [x for x in inputs if isinstance(x, Tensor) and x.is_floating_point()]
            results: Any = outputs if isinstance(outputs, tuple) else (outputs,)
            results = [y for y in results if isinstance(y, Tensor)]
            if all(x.isfinite().all() for x in floats) and not all(
                y.isfinite().all() for y in results
            ):
                found.append((name, max((float(x.abs().max()) for x in floats), default=0.0)))

        return hook

    # Inner modules finish before outer ones, so that the first entry is the innermost module.
    handles = [m.register_forward_hook(make_hook(n)) for n, m in model.named_modules() if n]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
