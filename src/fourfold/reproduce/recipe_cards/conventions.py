"""Values of recipe cards in common conventions: smoothing, length penalty, rates, batch sizes.

Each entry of `RESOLVED` converts values of a card to numbers that have the same meaning for all
cards. The argument of the functions is `Card.values`. They raise KeyError if the card does not
state a value.
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
    """Quantity that is derived from several values of a recipe card, such as tokens per step."""

    title: str
    needs: tuple[str, ...]  # keys of the values that are required
    # One or more numbers; None if it cannot be computed, KeyError if a value is not stated.
    value: Callable[[Values], tuple[float, ...] | None]
    optional: tuple[str, ...] = ()  # keys of values that change the quantity if present

    def of(self, values: Values) -> tuple[float, ...] | None:
        """Compute the quantity, or return None if the card does not state what it needs."""
        try:
            return self.value(values)
        except KeyError:
            return None


def length_penalty_divisors(values: Values) -> tuple[float, ...]:
    """Compute the divisors of the length penalty for `LENGTHS`, and the ratio of the first two."""
    penalty = LENGTH_PENALTIES[values["length_penalty_type"]]
    n = torch.tensor(LENGTHS, dtype=torch.float64)
    divisors = penalty(n, float(values["length_penalty"])).tolist()
    return (*divisors, divisors[1] / divisors[0])


def smoothed(values: Values) -> tuple[float, ...]:
    """Compute the smoothed probability of the target token, and that of all other tokens."""
    kind = values["label_smoothing_type"]
    own, _ = smoothing_weights(float(values["label_smoothing"]), kind, int(values["vocab_size"]))
    return own, 1.0 - own


def peak(values: Values) -> tuple[float, ...]:
    """Compute the peak learning rate: `lr`, which noam multiplies by width and warm-up steps."""
    lr = float(values["lr"])
    if values["schedule"] != "noam":
        return (lr,)
    warmup = int(values.get("warmup_steps", 0))
    config = ScheduleConfig(name="noam", warmup_steps=warmup)
    return (max_learning_rate(config, lr, warmup + 2, int(values["d_model"])),)


def max_learning_rate(schedule: ScheduleConfig, lr: float, total: int, d_model: int) -> float:
    """Compute the maximum learning rate of a training."""
    factor = learning_rate_factor(schedule, lr, total, d_model)
    # Every schedule rises during its warm-up and falls afterwards.
    last = min(total, schedule.warmup_steps + 2)
    return lr * max(factor(step) for step in range(max(0, last - 4), last))


def decay(values: Values) -> tuple[float, ...] | None:
    """Convert the weight decay to that of torch's AdamW, which the learning rate multiplies.

    A decay of the form "own" is not multiplied by the peak learning rate, by which it is therefore
    divided. An L2 penalty cannot be converted.
    """
    given = float(values["weight_decay"])
    if not given or values["weight_decay_form"] == "times_lr":
        return (given,)
    return (given / peak(values)[0],) if values["weight_decay_form"] == "own" else None


def tokens(values: Values) -> tuple[float, ...]:
    """Compute the tokens per optimizer step over all devices, with padding.

    Of a sentence pair, the longer side is counted. Without `batch_tokens`, the number is
    `batch_rows` times `length`.
    """
    keys = ("batch_tokens",) if "batch_tokens" in values else ("batch_rows", "length")
    return _per_step(values, *keys)


def rows(values: Values) -> tuple[float, ...]:
    """Compute the samples per optimizer step over all devices."""
    return _per_step(values, "batch_rows")


def _per_step(values: Values, *keys: str) -> tuple[float, ...]:
    """Multiply values by the devices and accumulation steps, which are 1 if not stated."""
    stated = {"devices": 1, "accumulation": 1, **values}
    return (float(math.prod(int(stated[key]) for key in (*keys, "devices", "accumulation"))),)


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
