"""Quantities derived from the values of a recipe card under its conventions, for comparison.

Each entry of `RESOLVED` converts values of a card, such as a length penalty and its form, to
numbers that have the same meaning for all cards. The result is None if the card lacks a value.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fourfold.generation.beam_search import LENGTH_PENALTIES
from fourfold.losses import smoothing_weights
from fourfold.schedules import ScheduleConfig, learning_rate_factor

Values = Mapping[str, Any]
LENGTHS = (10, 20, 40)  # of a hypothesis in tokens


@dataclass(frozen=True)
class Resolution:
    """Quantity that depends on several values of a card.

    Args:
        title: Description of the quantity.
        needs: Keys that are required.
        optional: Keys that change the quantity if present.
        value: Function from the values of a card to the numbers.
    """

    title: str
    needs: tuple[str, ...]
    value: Callable[[Values], tuple[float, ...] | None]
    optional: tuple[str, ...] = ()

    def of(self, values: Values) -> tuple[float, ...] | None:
        """Compute the quantity for a card; None if a required value is missing."""
        return self.value(values) if all(key in values for key in self.needs) else None


def length_penalty_divisors(values: Values) -> tuple[float, ...]:
    """Compute the divisors of the log-probability for `LENGTHS`, and the ratio of the first two."""
    n = torch.tensor(LENGTHS, dtype=torch.float64)
    divisors = LENGTH_PENALTIES[values["length_penalty_type"]](
        n, float(values["length_penalty"])
    ).tolist()
    return (*divisors, divisors[1] / divisors[0])


def smoothed(values: Values) -> tuple[float, ...]:
    """Compute the probability of the target, and of all other tokens together."""
    epsilon = float(values["label_smoothing"])
    n_tokens = int(values["vocab_size"])
    own, _ = smoothing_weights(epsilon, values["label_smoothing_type"], n_tokens)
    return own, 1.0 - own


def peak(values: Values) -> tuple[float, ...] | None:
    """Compute the peak learning rate; for noam it depends on width and warm-up."""
    lr = float(values["lr"])
    warmup = int(values.get("warmup_steps", 0))
    if values["schedule"] != "noam":
        return (lr,)
    if "d_model" not in values:
        return None
    config = ScheduleConfig(name="noam", warmup_steps=warmup)
    return (max_learning_rate(config, lr, warmup + 2, int(values["d_model"])),)


def max_learning_rate(schedule: ScheduleConfig, lr: float, total: int, d_model: int) -> float:
    """Compute the maximum learning rate over `total` steps."""
    factor = learning_rate_factor(schedule, lr, total, d_model)
    # Every schedule rises during its warm-up and falls afterwards.
    last = min(total, schedule.warmup_steps + 2)
    return lr * max(factor(step) for step in range(max(0, last - 4), last))


def decay(values: Values) -> tuple[float, ...] | None:
    """Convert a weight decay to that of torch's AdamW, which multiplies it by the learning rate."""
    given = float(values["weight_decay"])
    form = values.get("weight_decay_form")
    if not given or form == "times_lr":
        return (given,)
    rate = peak(values) if form == "own" and {"lr", "schedule"} <= values.keys() else None
    return rate and (given / rate[0],)


def tokens(values: Values) -> tuple[float, ...] | None:
    """Compute the tokens per optimizer step over all devices.

    For sentence pairs, the longer side counts, including padding, in toolkits and in this package.
    """
    if "batch_tokens" in values:
        return (_per_step(values, int(values["batch_tokens"])),)
    if {"batch_rows", "length"} <= values.keys():
        return (_per_step(values, int(values["batch_rows"]) * int(values["length"])),)
    return None


def rows(values: Values) -> tuple[float, ...] | None:
    """Compute the rows per optimizer step over all devices."""
    return (_per_step(values, int(values["batch_rows"])),) if "batch_rows" in values else None


def _per_step(values: Values, batch: int) -> float:
    return float(batch * math.prod(int(values.get(key, 1)) for key in ("devices", "accumulation")))


RESOLVED = (
    Resolution(
        "length penalty: divisor for 10, 20 and 40 tokens, and ratio of the first two",
        needs=("length_penalty", "length_penalty_type"),
        value=length_penalty_divisors,
    ),
    Resolution(
        "label smoothing: probability of the target, and of all other tokens together",
        needs=("label_smoothing", "label_smoothing_type", "vocab_size"),
        value=smoothed,
    ),
    Resolution(
        "peak learning rate",
        needs=("lr", "schedule"),
        value=peak,
        optional=("d_model", "warmup_steps"),
    ),
    Resolution(
        "weight decay in the convention of torch's AdamW",
        needs=("weight_decay",),
        value=decay,
        optional=("weight_decay_form", "lr", "schedule", "d_model"),
    ),
    Resolution(
        "tokens per step (of a sentence pair, those of the longer side)",
        needs=(),
        value=tokens,
        optional=("batch_tokens", "batch_rows", "length", "devices", "accumulation"),
    ),
    Resolution(
        "rows per step",
        needs=(),
        value=rows,
        optional=("batch_rows", "devices", "accumulation"),
    ),
)
