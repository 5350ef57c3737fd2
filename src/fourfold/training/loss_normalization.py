"""LossNormalizer: division of loss and gradients by the number of targets of an optimizer step.

The loss of a micro-batch is a sum over its targets. An optimizer step needs the gradient of the sum
over all micro-batches and processes, divided by the number of all targets. The gradient then does
not depend on the division of the examples into micro-batches and processes.
"""

from collections.abc import Callable, Iterable

import torch
from lightning import Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from fourfold.errors import InputError, TrainingStopped
from fourfold.lightning_internals import is_accumulating
from fourfold.metrics.base import stack_for_sum

# With gradient accumulation, losses are divided by this number until the number of targets is
# known. Dividing and multiplying by a power of two does not round.
REFERENCE_COUNT = 1024.0


def divisor(count: Tensor) -> Tensor:
    """Return a number of targets, or the sum of their weights, as a divisor: 1 in place of 0."""
    return torch.where(count > 0, count, 1)


class HostCopy:
    """Copy of a tensor in the memory of the host, for which the host waits only when it reads it.

    The wait ends with the work that was queued on the GPU before the copy was requested. Work that
    was queued later, such as a backward pass, continues, so the GPU does not become idle.
    """

    def __init__(self, x: Tensor) -> None:
        self._copy = x.to("cpu", non_blocking=x.is_cuda)  # pinned memory, if it is a copy
        self._copied = torch.cuda.Event() if x.is_cuda else None
        if self._copied is not None:
            self._copied.record()

    def tolist(self) -> list[float]:
        """Wait for the copy, and return its numbers."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._copy.tolist()


class LossNormalizer:
    """Normalizer of loss and gradients by the number of targets of an optimizer step.

    In each optimizer step, a single all-reduce sums four numbers over the processes: the loss, the
    number of targets, the number of nonfinite losses, and the number of requests to stop. The host
    reads them after the backward pass is queued, but waits for the last forward pass only.

    Attributes:
        mean: Mean loss of the targets of the last optimizer step, over all its micro-batches and
            processes.
        nonfinite: Scalar tensor, True if the loss of the last micro-batch was not finite.
        stop_requested: True if this process asks all processes to stop; set by a callback.
        stop_requested_anywhere: True on all processes if any asked to stop in the last step.
    """

    def __init__(self) -> None:
        self.nonfinite = torch.zeros((), dtype=torch.bool)
        self.stop_requested = False
        self.stop_requested_anywhere = False
        # (4,) in `sum_dtype`: loss, targets, nonfinite losses, requests to stop.
        self._sums: Tensor | None = None
        self._loss_dtype = torch.float32
        self._in_parts = False

    def restart(self, *, in_parts: bool) -> None:
        """Forget the losses of an unfinished step; `in_parts`: steps have several losses."""
        self._sums, self._in_parts = None, in_parts

    def scale_loss(self, total: Tensor, count: Tensor | int, trainer: Trainer) -> Tensor:
        """Return the loss of a micro-batch, a sum over `count` targets, for the backward pass.

        Without gradient accumulation, the loss is divided by the number of targets of the step.
        With gradient accumulation, the loss is divided by a constant, and `finalize_gradients`
        corrects the gradients. The scale also cancels two divisions: Lightning divides the loss by
        the number of micro-batches, and DDP divides the gradient by the number of processes.
        """
        self.nonfinite = ~total.detach().isfinite()
        self._loss_dtype = total.dtype
        sums = stack_for_sum(total, count, self.nonfinite, self.stop_requested)
        accumulates = self._in_parts or trainer.accumulate_grad_batches > 1
        if self._sums is not None and accumulates:
            sums = self._sums + sums
        if not is_accumulating(trainer):
            sums = trainer.strategy.reduce(sums, reduce_op="sum")
            self._on_host = HostCopy(sums)
        self._sums = sums
        if not accumulates:
            return total * trainer.world_size / divisor(sums[1]).to(total.dtype)
        return total * trainer.accumulate_grad_batches / REFERENCE_COUNT

    def finalize_gradients(
        self, parameters: Iterable[nn.Parameter], trainer: Trainer, explain: Callable[[], str]
    ) -> None:
        """Divide the gradients by the number of targets of the step, after its last micro-batch.

        Without gradient accumulation, `scale_loss` has already done so. If a later step than the
        first has no targets, its gradients are 0. `explain` describes the cause of a nonfinite loss
        and runs on all ranks.

        Raises:
            InputError: The first step of the training has no targets.
            TrainingStopped: A loss of the step is not finite, in this or another process.
        """
        assert self._sums is not None  # `scale_loss` was called
        sums = self._sums
        self._sums = None
        self.mean = (sums[0] / divisor(sums[1])).to(self._loss_dtype)
        _, count, nonfinite, stop = self._on_host.tolist()
        self.stop_requested_anywhere = stop > 0
        if nonfinite:
            learning_rate = trainer.optimizers[0].param_groups[0]["lr"]
            raise TrainingStopped(
                f"the loss of step {trainer.global_step + 1:,} is not a finite number (learning"
                f" rate {learning_rate:.3g}); the weights were not changed by this step;"
                f" {explain()}"
            )
        if not count and not trainer.global_step:
            causes = "its labels are ignored, or of a class with weight 0"
            raise InputError(f"gives no target in the first step: {causes}", option="--data")
        if self._in_parts or trainer.accumulate_grad_batches > 1:
            gradients = [p.grad for p in parameters if p.grad is not None]
            torch._foreach_mul_(gradients, REFERENCE_COUNT * trainer.world_size / (count or 1))


def check_unused_parameters(model: nn.Module, trainer: Trainer) -> None:
    """Warn about trainable parameters that have no gradient after the first backward pass."""
    unused = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
    if not unused:
        return
    names = ", ".join(unused[:3])
    if len(unused) > 3:
        names += f" and {len(unused) - 3} more"
    remedy = "; with DDP, give --trainer.strategy ddp_find_unused_parameters_true"
    hint = remedy if trainer.world_size > 1 else ""
    rank_zero_warn(f"the loss does not depend on {names}, which will not be trained{hint}")


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Compute the Euclidean norm of all gradients together, a scalar, also of sharded ones."""
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
