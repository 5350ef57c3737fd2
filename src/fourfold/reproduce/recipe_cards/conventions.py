"""Values of recipe cards in common conventions: smoothing, length penalty, rates, batch sizes.

A recipe card holds the hyperparameters of one published training and their conventions, such as the
formula of a length penalty. Each entry of `RESOLVED` converts values of a card to numbers that have
the same meaning for all cards, so that cards can be compared. The argument of the functions is
`Card.values`, the hyperparameters by key. Most functions return a tuple of one number. They raise
KeyError if the card does not state a value.
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
    """Quantity that is derived from several values of a recipe card, such as tokens per step.

    Args:
        title: Description of the quantity.
        needs: Keys of the values that are required.
        value: Function from the values of a recipe card (hyperparameters by key) to a tuple of one
            or more numbers. The result is None if the quantity cannot be computed. KeyError is
            raised if the card does not state a value.
        optional: Keys of values that change the quantity if present.
    """

    title: str
    needs: tuple[str, ...]
    value: Callable[[Values], tuple[float, ...] | None]
    optional: tuple[str, ...] = ()

    def of(self, values: Values) -> tuple[float, ...] | None:
        """Compute the quantity from the values of a recipe card.

        Args:
            values: Hyperparameters of the card by key.

        Returns:
            A tuple of one or more numbers; None if the quantity cannot be computed.
        """
        try:
            return self.value(values)
        except KeyError:
            return None


def length_penalty_divisors(values: Values) -> tuple[float, ...]:
    """Compute the numbers by which the length penalty divides log-probabilities of translations.

    Args:
        values: Values of a recipe card (hyperparameters by key), with the keys `length_penalty` and
            `length_penalty_type`.

    Returns:
        The divisors for translations of 10, 20 and 40 tokens (`LENGTHS`), and the divisor for 20
        tokens divided by that for 10 tokens.
    """
    penalty = LENGTH_PENALTIES[values["length_penalty_type"]]
    n = torch.tensor(LENGTHS, dtype=torch.float64)
    divisors = penalty(n, float(values["length_penalty"])).tolist()
    return (*divisors, divisors[1] / divisors[0])


def smoothed(values: Values) -> tuple[float, ...]:
    """Compute the smoothed label, the target distribution over tokens under label smoothing.

    Args:
        values: Values of a recipe card (hyperparameters by key), with the keys `label_smoothing`,
            `label_smoothing_type` and `vocab_size`.

    Returns:
        The probability of the target token, and the total probability of all other tokens.
    """
    kind = values["label_smoothing_type"]
    own, _ = smoothing_weights(float(values["label_smoothing"]), kind, int(values["vocab_size"]))
    return own, 1.0 - own


def peak(values: Values) -> tuple[float, ...]:
    """Compute the peak learning rate of a recipe card, a tuple of one number.

    The peak is `lr` of the card, except for the schedule noam, which multiplies `lr` by a function
    of width and warm-up steps.

    Args:
        values: Values of a recipe card (hyperparameters by key), with the keys `lr` and `schedule`
            and, for noam, `d_model` and `warmup_steps`.
    """
    lr = float(values["lr"])
    if values["schedule"] != "noam":
        return (lr,)
    warmup = int(values.get("warmup_steps", 0))
    config = ScheduleConfig(name="noam", warmup_steps=warmup)
    return (max_learning_rate(config, lr, warmup + 2, int(values["d_model"])),)


def max_learning_rate(schedule: ScheduleConfig, lr: float, total: int, d_model: int) -> float:
    """Compute the maximum learning rate of a training.

    Args:
        schedule: Schedule of the learning rate.
        lr: Learning rate that the schedule multiplies by a factor in each step.
        total: Number of optimizer steps.
        d_model: Width D of the model, which only the schedule noam uses.
    """
    factor = learning_rate_factor(schedule, lr, total, d_model)
    # Every schedule rises during its warm-up and falls afterwards.
    last = min(total, schedule.warmup_steps + 2)
    return lr * max(factor(step) for step in range(max(0, last - 4), last))


def decay(values: Values) -> tuple[float, ...] | None:
    """Convert the weight decay of a recipe card to the convention of torch's AdamW.

    AdamW multiplies the decay by the learning rate in each step. With `weight_decay_form` "own",
    the decay of the card is not multiplied by the peak learning rate. The decay is then divided by
    the peak learning rate here.

    Args:
        values: Values of a recipe card (hyperparameters by key), with the key `weight_decay`. If
            the decay is not 0, the card also states `weight_decay_form`.

    Returns:
        A tuple of one number, or None if the decay is an L2 penalty, which cannot be converted.
    """
    given = float(values["weight_decay"])
    if not given or values["weight_decay_form"] == "times_lr":
        return (given,)
    return (given / peak(values)[0],) if values["weight_decay_form"] == "own" else None


def tokens(values: Values) -> tuple[float, ...]:
    """Compute the number of tokens per optimizer step of a recipe card, over all devices.

    Of a sentence pair, only the longer side is counted. Padding tokens are counted. The number per
    device and accumulation step is `batch_tokens`. If the card does not state this value, the
    number is `batch_rows` (samples) times `length`.

    Returns:
        A tuple of one number.
    """
    keys = ("batch_tokens",) if "batch_tokens" in values else ("batch_rows", "length")
    return _per_step(values, *keys)


def rows(values: Values) -> tuple[float, ...]:
    """Compute the number of samples per optimizer step of a recipe card, over all devices.

    The number is the product of `batch_rows`, `devices` and `accumulation` of the card.

    Returns:
        A tuple of one number.
    """
    return _per_step(values, "batch_rows")


def _per_step(values: Values, *keys: str) -> tuple[float, ...]:
    """Compute the product of some values of a recipe card and two further values.

    The further values are the numbers of devices and accumulation steps per optimizer step.

    Args:
        values: Values of the card. One device and one accumulation step are assumed if not stated.
        keys: Keys of the values to multiply.

    Returns:
        The product, as a tuple of one number.
    """
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
