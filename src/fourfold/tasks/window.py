"""What the micro-batches and ranks of one optimizer step have in common: its targets.

Losses are sums; an optimizer step needs the gradient of their sum over the number of targets of all
micro-batches and ranks, however the rows were cut.
"""

from collections.abc import Iterable

import torch
from lightning import Trainer
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from fourfold.core.errors import InputError, TrainingStopped

# With accumulation, gradients of sums are divided by this until the true count is known. A power
# of two, so that dividing and multiplying again rounds nothing.
REFERENCE = 1024.0


class Window:
    """Counts targets, and losses that are not finite, from one optimizer step to the next.

    What else all ranks have to know after a step travels in the same message: the loss, and whether
    one of them was asked to stop.
    """

    mean: Tensor  # loss of the last step that was closed, over all its micro-batches and ranks

    def __init__(self) -> None:
        self.broken = torch.zeros((), dtype=torch.bool)  # whether this micro-batch's loss is
        self.asked = False  # whether this process is to stop; set from outside
        self.all_asked = False  # whether any was when the last step was taken, the same on all
        # (4,) double, in which counts are exact: targets, broken losses, asked to stop, loss
        self._sums: Tensor | None = None

    def add(self, total: Tensor, count: Tensor, trainer: Trainer) -> Tensor:
        """The loss of a micro-batch, as it is to be differentiated.

        Lightning divides it by the micro-batches, and DDP its gradient by the ranks.

        Args:
            total: Sum of the loss over the micro-batch's targets.
            count: Their number.
            trainer: Knows ranks and micro-batches.
        """
        loss = total.detach()
        self.broken, self._kind = ~loss.isfinite(), loss.dtype
        asked = count.new_full((), int(self.asked))  # no wait for the device
        sums = torch.stack([x.double() for x in (count, self.broken, asked, loss)])
        if trainer.accumulate_grad_batches == 1:
            self._sums = over_ranks(sums, trainer)
            return total * trainer.world_size / self._sums[0].clamp(min=1).to(total.dtype)
        self._sums = sums if self._sums is None else self._sums + sums
        return total * trainer.accumulate_grad_batches / REFERENCE

    def close(self, parameters: Iterable[nn.Parameter], trainer: Trainer) -> None:
        """Before the optimizer's step: set the gradients right, now that the count is known.

        Raises:
            InputError: The first step has no target at all.
            TrainingStopped: A loss of the step, on whichever rank, is not finite.
        """
        assert self._sums is not None  # a micro-batch has been added
        accumulated = trainer.accumulate_grad_batches > 1
        sums = over_ranks(self._sums, trainer) if accumulated else self._sums
        self._sums = None
        self.mean = (sums[3] / sums[0].clamp(min=1)).to(self._kind)
        count, broken, asked, _ = sums.tolist()
        self.all_asked = asked > 0
        if broken:
            raise TrainingStopped(
                f"the loss of step {trainer.global_step + 1:,} is not a finite number (learning"
                f" rate {trainer.optimizers[0].param_groups[0]['lr']:.3g}); no step was taken"
            )
        if not count and not trainer.global_step:
            raise InputError("the first step has no target: all of its labels are to be ignored")
        if accumulated:
            gradients = [p.grad for p in parameters if p.grad is not None]
            torch._foreach_mul_(gradients, REFERENCE * trainer.world_size / max(1, count))


def count_of(n: int, like: Tensor) -> Tensor:
    """`n` where `like` lives, for which a GPU need not be waited for."""
    return like.new_full((), n, dtype=torch.long)


def over_ranks(numbers: Tensor, trainer: Trainer) -> Tensor:
    """Their sum over all processes."""
    if trainer.world_size == 1:
        return numbers
    total: Tensor = trainer.strategy.reduce(numbers, reduce_op="sum")
    return total


def refuse_idle(model: nn.Module, trainer: Trainer) -> None:
    """Say which parameters the loss does not reach; where ranks wait for them, stop.

    Raises:
        InputError: DDP would wait for gradients that never come.
    """
    idle = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
    if not idle:
        return
    names = ", ".join(idle[:3]) + (f" and {len(idle) - 3} more" if len(idle) > 3 else "")
    options = getattr(trainer.strategy, "_ddp_kwargs", None)  # of DDP alone
    if trainer.world_size > 1 and options is not None and not options.get("find_unused_parameters"):
        raise InputError(
            f"the loss does not reach {names}, for which DDP would wait: leave them out of the"
            " model, or give --trainer.strategy ddp_find_unused_parameters_true"
        )
    rank_zero_warn(f"the loss does not reach {names}: they stay as they are")


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Euclidean norm of all gradients together; of sharded ones, over all ranks."""
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
