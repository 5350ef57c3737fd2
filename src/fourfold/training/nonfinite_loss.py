"""Description of the first NaN or infinite value in a training step that was stopped by it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_forward_hook

from fourfold.metrics.base import gather_objects

# Batch, seed of its dropout, and scalar flag for a loss of NaN or Inf.
MicroBatch = tuple[Any, int, Tensor]
MAX_ROWS = 16  # that a message names


def find_nonfinite(task: Any, micro_batches: Sequence[MicroBatch]) -> str:
    """Run the first batch of a step with a nonfinite loss again, and describe where it arises.

    All ranks must call this function, because the forward pass of sharded weights communicates.
    The result is that of the first rank with such a loss, on all ranks.

    Args:
        task: The task, whose weights are those before the step.
        micro_batches: The batches of the step on this rank.

    Returns:
        The rows of the batch, and the first module with finite inputs and a nonfinite output.
    """
    failed = [x for x in micro_batches if x[2]]
    batch, seed, _ = (failed or micro_batches)[0]
    names = {module: name for name, module in task.model.named_modules() if name}
    weights = [name for name, x in task.model.named_parameters() if not _is_finite(x)]
    found: list[str] = []

    def record(module: nn.Module, inputs: Any, outputs: Any) -> None:
        # Inner modules end before outer ones, so the first entry is the innermost module.
        if not found and module in names and _is_finite(inputs) and not _is_finite(outputs):
            found.append(f"the output of model.{names[module]} is the first with NaN or Inf")

    torch.manual_seed(seed)
    run = getattr(task.model, "run_step", lambda step, *inputs: step(*inputs))  # of FSDP2
    precision = task.trainer.precision_plugin.forward_context()
    eager = torch.compiler.set_stance("force_eager")  # a compiled block would hide its modules
    with register_module_forward_hook(record), precision, eager, torch.no_grad():
        run(task.step, batch)
    where = f"batch {getattr(batch, 'position', '?')} of epoch {task.current_epoch + 1}"
    if hasattr(batch, "rows"):  # a batch of consecutive tokens has none
        rows = batch.rows.tolist()
        more = f" and {len(rows) - MAX_ROWS} more" if len(rows) > MAX_ROWS else ""
        where += f" (rows {', '.join(map(str, rows[:MAX_ROWS]))}{more})"
    cause = [f"the weights model.{name} are not finite" for name in weights[:1]] or found
    described = f"{where}: {(cause or ['the outputs of all modules are finite'])[0]}"
    return next(filter(None, gather_objects(described if failed else None)), described)


def _is_finite(values: Any) -> bool:
    """Return True if all floating-point tensors among the inputs or outputs are finite."""
    tensors = values if isinstance(values, tuple) else (values,)
    local = [x.to_local() if isinstance(x, DTensor) else x for x in tensors]
    floats = [x for x in local if isinstance(x, Tensor) and x.is_floating_point()]
    return all(bool(x.isfinite().all()) for x in floats)
