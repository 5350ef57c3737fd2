"""Learning-rate schedules with warm-up: constant, linear, cosine, wsd, halving and others."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fourfold.core.validation import check_range, check_types
from fourfold.errors import InputError

ScheduleName = Literal[
    "constant", "linear", "linear_from_start", "cosine", "wsd", "halving", "inverse_sqrt", "noam"
]


@dataclass(frozen=True)
class ScheduleConfig:
    """Options of a learning-rate schedule, which advances once per optimizer step.

    Args:
        name: constant; linear (falls on a line after the warm-up; RoBERTa); linear_from_start (on a
            line whose beginning the warm-up replaces; BERT's code); cosine; wsd (keeps the peak,
            then falls on a line; Hu et al. 2024); halving (keeps the peak, then halves several
            times; Sutskever et al. 2014); inverse_sqrt (fairseq) or noam (Vaswani et al. 2017).
        warmup_steps: Number of steps at the start in which the learning rate grows linearly.
        total_steps: Number of steps of a linear, cosine, wsd or halving schedule, warm-up included;
            None means the number of optimizer steps of the run.
        min_lr: Final learning rate of a linear, cosine or wsd schedule. A cosine schedule reaches
            `min_lr` at the last step, and a linear or wsd schedule would reach it one step later.
        decay_from: Fraction of `total_steps` after which wsd decays.
        halve_from: Fraction of `total_steps` after which halving halves for the first time.
        n_halvings: Number of halvings, at equal distances.

    Example:
        >>> config = ScheduleConfig("noam", warmup_steps=4000)
        >>> factor = learning_rate_factor(config, 1.0, None, d_model=512)
        >>> max(range(10_000), key=factor)  # finished steps at the peak
        3999
        >>> round(factor(3999), 6)
        0.000699
    """

    name: ScheduleName = "constant"
    warmup_steps: int = 0
    total_steps: int | None = None
    min_lr: float = 0.0
    decay_from: float = 0.9
    halve_from: float = 0.5
    n_halvings: int = 5

    def __post_init__(self) -> None:
        check_types(self, prefix="schedule.")
        check_range("schedule.warmup_steps", self.warmup_steps, minimum=0)
        check_range("schedule.min_lr", self.min_lr, minimum=0.0)
        check_range("schedule.decay_from", self.decay_from, minimum=0.0, below=1.0)
        check_range("schedule.halve_from", self.halve_from, minimum=0.0, below=1.0)
        check_range("schedule.n_halvings", self.n_halvings, minimum=1, maximum=1000)
        total = self.total_steps
        if total is not None:
            check_range("schedule.total_steps", total, minimum=1)
            if self.name in FINITE_SCHEDULES and self.warmup_steps >= total:
                message = (
                    f"must be less than schedule.total_steps ({total}), got {self.warmup_steps}"
                )
                raise InputError(message, option="schedule.warmup_steps")


# Schedules with a fixed number of steps. All of them but halving end at min_lr.
FINITE_SCHEDULES = ("linear", "linear_from_start", "cosine", "wsd", "halving")


def learning_rate_factor(
    config: ScheduleConfig, lr: float, total_steps: int | None, d_model: int
) -> Callable[[int], float]:
    """Build a function for torch's `LambdaLR`: from finished steps to a factor on the peak.

    `total_steps` is that of the training (None if unknown), for a config without `total_steps`.
    `d_model` is for noam only. InputError if `config.min_lr` is above the peak `lr`.

    Example:
        >>> factor = learning_rate_factor(ScheduleConfig("linear", warmup_steps=2), 1e-3, 4, 512)
        >>> [round(factor(step), 2) for step in range(4)]
        [0.5, 1.0, 0.67, 0.33]
    """
    warmup = config.warmup_steps
    end = config.total_steps or total_steps or 0
    final = config.min_lr / lr if config.name in FINITE_SCHEDULES else 0.0
    if final > 1.0:
        message = f"must be at most optimizer.lr ({lr:g}), got {config.min_lr:g}"
        raise InputError(message, option="schedule.min_lr")

    peak = max(1, warmup)
    stable = max(peak, round(config.decay_from * end))
    starts = {"linear": peak, "linear_from_start": 1, "wsd": stable}  # last step with the peak

    def factor(steps_done: int) -> float:
        step = steps_done + 1  # the papers count from 1
        if step < warmup and config.name != "noam":
            return step / warmup
        match config.name:
            case "constant":
                shape = 1.0
            case "linear" | "linear_from_start" | "wsd":
                start = starts[config.name]
                # Reaches 0 one step after the last, so that the last step changes the weights.
                shape = min(1.0, max(0.0, (end - step + 1) / max(1, end - start + 1)))
            case "cosine":  # Loshchilov and Hutter 2016; GPT, DeiT
                done = min(1.0, (step - warmup) / max(1, end - warmup))
                shape = 0.5 * (1.0 + math.cos(math.pi * done))
            case "halving":
                start = round(config.halve_from * end)
                done = (steps_done - start) * config.n_halvings // max(1, end - start)
                shape = 0.5 ** min(config.n_halvings, max(0, done + 1))
            case "inverse_sqrt":  # fairseq: the peak is at the end of the warm-up
                shape = math.sqrt(peak / step)
            case "noam":  # Vaswani et al. 2017, eq. 3
                shape = d_model**-0.5 * min(step**-0.5, step * peak**-1.5)
        return final + (1.0 - final) * shape

    return factor
