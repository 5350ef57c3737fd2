"""`fourfold replay`: the batch that stopped a training once more, module by module."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

import fourfold.data.batch
from fourfold.commands.devices import autocast, choose_device, settle
from fourfold.commands.inference import PRECISIONS, OptionParser
from fourfold.commands.overview import REPLAY
from fourfold.core.errors import InputError
from fourfold.tasks import Task, read_file, rebuild

KEPT = {"batch_class", "batch", "seed", "step", "precision", "device"}  # of a stopped training


def main(argv: Sequence[str]) -> int:
    """Print what the batch of a file makes of its model.

    Raises:
        InputError: The file is none that a stopped training wrote.
    """
    if not argv or list(argv) in (["-h"], ["--help"]):
        print(REPLAY)
        return 0 if argv else 2
    parser = OptionParser(prog="fourfold replay", add_help=False, allow_abbrev=False)
    parser.add_argument("file")
    parser.add_argument("--device", default=None)
    parser.add_argument("--precision", default=None, choices=(*PRECISIONS, "64-true"))
    options = parser.parse_args(argv)
    content = read_file(options.file)
    told: Any = content.get("replay")
    known = isinstance(told, dict) and told.keys() >= KEPT and isinstance(told["batch"], dict)
    kind: Any = getattr(fourfold.data.batch, str(told["batch_class"]), None) if known else None
    fields = getattr(kind, "_fields", None)
    if "fourfold" not in content or fields is None or set(fields) != told["batch"].keys():
        raise InputError(f"{options.file}: not a file that a stopped training has written")
    task = rebuild(content, options.file).train()
    device = choose_device(options.device or told["device"])
    batch = kind(**told["batch"])
    precision = options.precision or told["precision"]
    print(f"step {told['step']:,}, batch {batch.position} of epoch {batch.epoch},"
          f" {precision} on {device}")  # fmt: skip
    finite = report(task, batch, told["seed"], device, precision)
    if not finite and precision != "32-true":
        print("\nthe same in 32-true")
        report(task, batch, told["seed"], device, "32-true")
    return 0


def move(batch: Any, like: Tensor) -> Any:
    """The batch where a weight is, its numbers as exact as that."""
    tensors = {k: v for k, v in batch._asdict().items() if isinstance(v, Tensor)}
    return batch._replace(
        **{k: v.to(like if v.is_floating_point() else like.device) for k, v in tensors.items()}
    )


def report(task: Task, batch: Any, seed: int, device: torch.device, precision: str) -> bool:
    """Run the batch and print where numbers stop being finite; whether they all are."""
    settle(task, device, precision)
    batch = move(batch, next(task.model.parameters()))
    for name, weight in task.model.named_parameters():
        if not weight.isfinite().all():
            print(f"the weights are broken already: {name} is not finite")
            break
    torch.manual_seed(seed)  # dropout as it was
    with watched(task.model) as found, autocast(device, precision), torch.no_grad():
        total, count = task.step(batch)
    loss = float(total / count.clamp(min=1))
    print(f"loss {loss} over {int(count):,} targets")
    if found:
        name, largest = found[0]
        print(f"first output that is not finite: model.{name}, from inputs up to {largest:.3g}")
    elif not total.isfinite():
        print("all outputs of modules are finite: it is the loss itself that is not")
    else:
        print("everything is finite")
    return bool(total.isfinite())


@contextmanager
def watched(model: nn.Module) -> Iterator[list[tuple[str, float]]]:
    """Names of modules that turn finite inputs into others, with the largest input, in order."""
    found: list[tuple[str, float]] = []

    def watch(name: str) -> Any:
        def look(module: nn.Module, inputs: Any, outputs: Any) -> None:
            given = [x for x in inputs if isinstance(x, Tensor) and x.is_floating_point()]
            made = outputs if isinstance(outputs, tuple) else (outputs,)
            fine = all(bool(x.isfinite().all()) for x in given)
            if fine and not all(bool(y.isfinite().all()) for y in made if isinstance(y, Tensor)):
                found.append((name, max((float(x.abs().max()) for x in given), default=0.0)))

        return look

    # Of modules inside others the inner ones end first, so the first found is the innermost.
    handles = [m.register_forward_hook(watch(n)) for n, m in model.named_modules() if n]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
