"""Quantities derived from the values of a recipe card under its conventions, for comparison.

A recipe card holds the hyperparameters of one published training and the convention of each, such
as the formula of a length penalty. Each entry of `RESOLVED` converts values of a card to numbers
that have the same meaning for all cards. The result is None if the card lacks a value.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fourfold.generation.beam_search import LENGTH_PENALTIES
from fourfold.losses import smoothing_weights
from fourfold.reproduce.recipe_cards.cards import BATCH, SMOOTHING
from fourfold.schedules import ScheduleConfig, learning_rate_factor

Values = Mapping[str, Any]
LENGTHS = (10, 20, 40)  # tokens of a translation


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
        """Compute the quantity from the values of a card; None if a required value is missing."""
        return self.value(values) if all(key in values for key in self.needs) else None


def length_penalty_divisors(values: Values) -> tuple[float, ...]:
    """Compute the divisors of log-probabilities for `LENGTHS`, and the ratio of two of them.

    The ratio is the divisor of the second length divided by the divisor of the first length.
    """
    penalty = LENGTH_PENALTIES[values["length_penalty_type"]]
    n = torch.tensor(LENGTHS, dtype=torch.float64)
    divisors = penalty(n, float(values["length_penalty"])).tolist()
    return (*divisors, divisors[1] / divisors[0])


def smoothed(values: Values) -> tuple[float, ...]:
    """Compute the target probabilities under label smoothing.

    Returns:
        The probability of the target token, and that of all other tokens together.
    """
    kind = values["label_smoothing_type"]
    own, _ = smoothing_weights(float(values["label_smoothing"]), kind, int(values["vocab_size"]))
    return own, 1.0 - own


def peak(values: Values) -> tuple[float, ...] | None:
    """Compute the peak learning rate; for noam it depends on width and warm-up steps."""
    lr = float(values["lr"])
    if values["schedule"] != "noam":
        return (lr,)
    if "d_model" not in values:
        return None
    warmup = int(values.get("warmup_steps", 0))
    config = ScheduleConfig(name="noam", warmup_steps=warmup)
    return (max_learning_rate(config, lr, warmup + 2, int(values["d_model"])),)


def max_learning_rate(schedule: ScheduleConfig, lr: float, total: int, d_model: int) -> float:
    """Compute the maximum learning rate over `total` optimizer steps."""
    factor = learning_rate_factor(schedule, lr, total, d_model)
    # Every schedule rises during its warm-up and falls afterwards.
    last = min(total, schedule.warmup_steps + 2)
    return lr * max(factor(step) for step in range(max(0, last - 4), last))


def decay(values: Values) -> tuple[float, ...] | None:
    """Convert a weight decay to that of torch's AdamW, which multiplies it by the learning rate.

    None for an L2 penalty, or if the card lacks the convention or the learning rate.
    """
    given = float(values["weight_decay"])
    form = values.get("weight_decay_form")
    if not given or form == "times_lr":
        return (given,)
    rate = peak(values) if form == "own" and {"lr", "schedule"} <= values.keys() else None
    return rate and (given / rate[0],)


def tokens(values: Values) -> tuple[float, ...] | None:
    """Compute the tokens per optimizer step over all devices.

    In a sentence pair, the tokens of the longer side count, including padding.
    """
    return _per_step(values, "batch_tokens") or _per_step(values, "batch_rows", "length")


def rows(values: Values) -> tuple[float, ...] | None:
    """Compute the rows (samples) per optimizer step over all devices."""
    return _per_step(values, "batch_rows")


def _per_step(values: Values, *keys: str) -> tuple[float, ...] | None:
    """Multiply values by devices and accumulation; None if a value is missing."""
    if not set(keys) <= values.keys():
        return None
    factors = [*(values[key] for key in keys), values.get("devices", 1)]
    return (float(math.prod(map(int, factors)) * int(values.get("accumulation", 1))),)


RESOLVED = (
    Resolution(
        "length penalty: divisor for 10, 20 and 40 tokens, and ratio of the first two",
        ("length_penalty", "length_penalty_type"),
        length_penalty_divisors,
    ),
    Resolution(
        "label smoothing: probability of the target, and of all other tokens together",
        (*SMOOTHING, "vocab_size"),
        smoothed,
    ),
    Resolution("peak learning rate", ("lr", "schedule"), peak, ("d_model", "warmup_steps")),
    Resolution(
        "weight decay in the convention of torch's AdamW",
        ("weight_decay",),
        decay,
        ("weight_decay_form", "lr", "schedule", "d_model"),
    ),
    Resolution("tokens per step (of a sentence pair, those of the longer side)", (), tokens, BATCH),
    Resolution("rows per step", (), rows, ("batch_rows", "devices", "accumulation")),
)
