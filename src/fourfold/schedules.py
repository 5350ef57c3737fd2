"""Learning-rate schedules as one table."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from fourfold.core.config import check_types, check_word
from fourfold.core.errors import InputError
from fourfold.optim import check_range


@dataclass(frozen=True)
class ScheduleConfig:
    """How the learning rate moves; it steps once an optimizer step.

    Args:
        name: constant, linear, linear_from_start (BERT's code), cosine, inverse_sqrt or noam.
        warmup_steps: Steps of linear growth at the start.
        total_steps: Where those that fall to an end have it; None means the end of the run.
        min_lr: What they fall to, as a learning rate: cosine with the last step, the linear ones
            behind it.
    """

    name: str = "constant"
    warmup_steps: int = 0
    total_steps: int | None = None
    min_lr: float = 0.0

    def __post_init__(self) -> None:
        check_types(self)
        check_word("schedule name", self.name, tuple(SCHEDULES))
        check_range("warmup_steps", self.warmup_steps, least=0)
        check_range("min_lr", self.min_lr, least=0.0)
        if self.total_steps is not None:
            check_range("total_steps", self.total_steps, least=1)
            if self.name in ENDING and self.warmup_steps >= self.total_steps:
                raise InputError(
                    f"warmup_steps is {self.warmup_steps}, but must be less than total_steps"
                    f" {self.total_steps}"
                )


def _constant(step: int, total: int, warmup: int, d_model: int) -> float:
    return 1.0


def _linear(step: int, total: int, warmup: int, d_model: int) -> float:
    # Zero is reached behind the last step, so that this one still learns.
    return max(0.0, (total - step + 1) / max(1, total - max(1, warmup) + 1))


def _cosine(step: int, total: int, warmup: int, d_model: int) -> float:
    done = min(1.0, (step - warmup) / max(1, total - warmup))
    return 0.5 * (1.0 + math.cos(math.pi * done))


def _inverse_sqrt(step: int, total: int, warmup: int, d_model: int) -> float:
    return math.sqrt(max(1, warmup) / step)


def _noam(step: int, total: int, warmup: int, d_model: int) -> float:
    return float(d_model**-0.5 * min(step**-0.5, step * max(1, warmup) ** -1.5))


# Each: (step from 1, total steps, warm-up steps, D) to a factor on the peak learning rate.
SCHEDULES: dict[str, Callable[[int, int, int, int], float]] = {
    "constant": _constant,
    "linear": _linear,  # RoBERTa
    "linear_from_start": lambda s, total, _, d: _linear(s, total, 0, d),  # BERT's code
    "cosine": _cosine,  # Loshchilov and Hutter 2016; GPT, DeiT
    "inverse_sqrt": _inverse_sqrt,  # fairseq's form: peak at the end of the warm-up
    "noam": _noam,  # Vaswani et al. 2017, eq. 3
}

# Those that reach their floor at the end of the run.
ENDING = ("linear", "linear_from_start", "cosine")


def learning_rate_factor(
    config: ScheduleConfig, lr: float, total: int | None, d_model: int
) -> Callable[[int], float]:
    """Factor on the peak learning rate `lr` for optimizer step i = 0, 1, ..., total - 1.

    A run of no known end (None) can have any schedule but those of ENDING.
    """
    shape, warmup = SCHEDULES[config.name], config.warmup_steps
    end = config.total_steps or total or 0
    floor = config.min_lr / lr if config.name in ENDING else 0.0
    if floor > 1.0:
        raise InputError(f"min_lr is {config.min_lr:g}, but must not be above lr {lr:g}")

    def factor(done: int) -> float:
        step = done + 1  # the papers count from 1
        if step < warmup and config.name != "noam":
            return step / warmup
        return floor + (1.0 - floor) * shape(step, end, warmup, d_model)

    return factor


def make_schedule(
    optimizer: Optimizer, config: ScheduleConfig, lr: float, total: int | None, d_model: int
) -> LambdaLR:
    """The schedule of `config` over `total` optimizer steps."""
    return LambdaLR(optimizer, learning_rate_factor(config, lr, total, d_model))
