"""What numbers of a recipe come to, once their conventions are resolved, to be compared.

Each row of `RESOLVED` takes what a card says and gives a few numbers that mean the same for all;
it gives none where the card leaves something open.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fourfold.generation.beam import PENALTIES
from fourfold.losses import smoothing_weights
from fourfold.schedules import ScheduleConfig, learning_rate_factor

Values = Mapping[str, Any]
LENGTHS = (10, 20, 40)  # tokens of a hypothesis


@dataclass(frozen=True)
class Resolution:
    """A quantity that depends on more than one number.

    Args:
        title: What it is.
        needs: The keys it is made of.
        optional: Keys that change it, where they are said.
        value: From what the card says to the numbers.
    """

    title: str
    needs: tuple[str, ...]
    value: Callable[[Values], tuple[float, ...] | None]
    optional: tuple[str, ...] = ()

    def of(self, values: Values) -> tuple[float, ...] | None:
        """The numbers of a card; None where it does not say enough."""
        return self.value(values) if all(key in values for key in self.needs) else None


def divisors(values: Values) -> tuple[float, ...]:
    """What the log-probability of 10, 20 and 40 tokens is divided by, and the growth 10 to 20."""
    n = torch.tensor(LENGTHS, dtype=torch.float64)
    found = PENALTIES[values["penalty"]](n, float(values["length_penalty"])).tolist()
    return (*found, found[1] / found[0])


def smoothed(values: Values) -> tuple[float, ...]:
    """Probability of the target, and of all other words together."""
    epsilon, n_words = float(values["label_smoothing"]), int(values["vocab_size"])
    own, _ = smoothing_weights(epsilon, values["smoothing"], n_words)
    return own, 1.0 - own


def peak(values: Values) -> tuple[float, ...] | None:
    """The greatest learning rate: lr itself, but of noam it depends on width and warm-up."""
    lr, warmup = float(values["lr"]), int(values.get("warmup_steps", 0))
    if values["schedule"] != "noam":
        return (lr,)
    if "d_model" not in values:
        return None
    config = ScheduleConfig(name="noam", warmup_steps=warmup)
    return (greatest_rate(config, lr, warmup + 2, int(values["d_model"])),)


def greatest_rate(schedule: ScheduleConfig, lr: float, total: int, d_model: int) -> float:
    """The greatest learning rate of `total` steps."""
    factor = learning_rate_factor(schedule, lr, total, d_model)
    # Every schedule rises to the end of its warm-up, and falls from there.
    last = min(total, schedule.warmup_steps + 2)
    return lr * max(factor(step) for step in range(max(0, last - 4), last))


def decay(values: Values) -> tuple[float, ...] | None:
    """The decay as torch's AdamW counts it, which multiplies it by the learning rate."""
    given, form = float(values["weight_decay"]), values.get("weight_decay_form")
    if not given or form == "times_lr":
        return (given,)
    rate = peak(values) if form == "own" and {"lr", "schedule"} <= values.keys() else None
    return rate and (given / rate[0],)


def tokens(values: Values) -> tuple[float, ...] | None:
    """How many lie between two optimizer steps, over all devices: as such, or in whole rows.

    Toolkits bound the longer side of a pair, padding included, as this package does.
    """
    if "batch_tokens" in values:
        return (_a_step(values, int(values["batch_tokens"])),)
    if {"batch_rows", "length"} <= values.keys():
        return (_a_step(values, int(values["batch_rows"]) * int(values["length"])),)
    return None


def rows(values: Values) -> tuple[float, ...] | None:
    """How many lie between two optimizer steps, over all devices."""
    return (_a_step(values, int(values["batch_rows"])),) if "batch_rows" in values else None


def _a_step(values: Values, batch: int) -> float:
    return float(batch * math.prod(int(values.get(key, 1)) for key in ("devices", "accumulation")))


RESOLVED = (
    Resolution(
        "length penalty: divisor at 10, 20 and 40 tokens; growth from 10 to 20",
        ("length_penalty", "penalty"), divisors,
    ),
    Resolution(
        "label smoothing: probability of the target; of all others together",
        ("label_smoothing", "smoothing", "vocab_size"), smoothed,
    ),
    Resolution(
        "peak learning rate", ("lr", "schedule"), peak, optional=("d_model", "warmup_steps"),
    ),
    Resolution(
        "weight decay as torch's AdamW counts it",
        ("weight_decay",), decay, optional=("weight_decay_form", "lr", "schedule", "d_model"),
    ),
    Resolution(
        "tokens a step; of a pair to translate, on its longer side", (), tokens,
        optional=("batch_tokens", "batch_rows", "length", "devices", "accumulation"),
    ),
    Resolution(
        "rows a step", (), rows, optional=("batch_rows", "devices", "accumulation"),
    ),
)  # fmt: skip
