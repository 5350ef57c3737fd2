"""Recipe cards: how others train, each number with its convention and the file it stands in.

The same number under another convention is another recipe. A card therefore names the convention
(`penalty`, `smoothing`, `weight_decay_form`, `schedule`) in the words of this package's configs.
"""

from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib import resources
from typing import Any

import yaml

from fourfold.core.errors import InputError
from fourfold.papers.tables import make

# What a card may say, in the order in which it is shown.
KEYS = (
    "task", "n_layers", "d_model", "d_ff", "n_heads", "feed_forward", "activation",
    "norm_placement", "norm_eps", "dropout", "attn_dropout", "ff_dropout", "drop_path", "positions",
    "pool", "tie", "bias", "attention_bias", "vocab_size", "optimizer", "bias_correction", "beta1",
    "beta2", "eps", "weight_decay", "weight_decay_form", "clip", "schedule", "lr", "min_lr",
    "warmup_steps", "steps", "epochs", "batch_tokens", "batch_rows", "length", "devices",
    "accumulation", "label_smoothing", "smoothing", "mask_rate", "static_masks", "averaged", "beam",
    "length_penalty", "penalty", "extra_length",
)  # fmt: skip
TASKS = ("translation", "masked_lm", "causal_lm", "downstream", "images")
# What there is in some tasks only.
ONLY = {
    "mask_rate": ("masked_lm",),
    "static_masks": ("masked_lm",),
    "pool": ("images",),
    **dict.fromkeys(("vocab_size", "batch_tokens"), TASKS[:-1]),
    "length": ("masked_lm", "causal_lm", "downstream"),
    "label_smoothing": ("translation", "downstream", "images"),
    "smoothing": ("translation",),
    **dict.fromkeys(("beam", "length_penalty", "penalty", "extra_length"), ("translation",)),
}
# What is the convention of another number, and of none if that is 0.
OF = {"weight_decay_form": "weight_decay", "smoothing": "label_smoothing"}
# Conventions that one number is read by, and what each means.
MEANINGS = {
    "penalty": {
        "gnmt": "scores are divided by ((5 + n) / 6)^alpha (Wu et al. 2016)",
        "power": "scores are divided by n^alpha",
        "none": "scores are not divided",
    },
    "smoothing": {
        "uniform": "all V words share epsilon, the target too",
        "off_target": "the V - 1 others share epsilon",
        "off_target_pad": "V - 2 others share epsilon, padding gets none",
    },
    "schedule": {
        "constant": "lr, once the warm-up is over",
        "linear": "rises to lr in the warm-up, then falls in a line",
        "linear_from_start": "falls from lr in a line from the first step on, the warm-up apart",
        "cosine": "rises to lr in the warm-up, then falls as half a wave",
        "inverse_sqrt": "rises to lr in the warm-up, then falls as step^-0.5",
        "noam": "lr x d_model^-0.5 x min(step^-0.5, step x warmup_steps^-1.5)",
        "plateau": "lr, and less each time that a score does not get better",
        "triangle": "rises to lr in a line and falls in another, over the time there is",
        "trapezoid": "rises to lr in the warm-up, stays, then falls in a line",
    },
    "weight_decay_form": {
        "times_lr": "each step takes off learning rate x decay",
        "own": "each step takes off decay, the peak learning rate left out",
        "l2": "decay x weight is added to the gradient, which the optimizer rescales",
    },
}


@dataclass(frozen=True)
class Card:
    """A recipe.

    Args:
        name: Its name on the command line.
        title: What it trains.
        source: File and commit, or section, that it was read in.
        values: What it says, by `KEYS`; what it leaves open is not there.
        notes: What a value does not tell by itself.
    """

    name: str
    title: str
    source: str
    values: dict[str, Any]
    notes: dict[str, str] = field(default_factory=dict)

    def lacks(self, key: str) -> bool:
        """Whether there is no such thing in its task, or beside a 0."""
        task = self.values.get("task")
        elsewhere = task is not None and task not in ONLY.get(key, TASKS)
        return elsewhere or self.values.get(OF.get(key, "")) == 0


@cache
def cards() -> dict[str, Card]:
    """The cards of the package, by name."""
    folder = resources.files("fourfold.papers") / "cards"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name)
    return {
        (name := f.name.removesuffix(".yaml")): read_card(name, f.read_text(encoding="utf-8"))
        for f in files
    }


def read_card(name: str, text: str) -> Card:
    """One file.

    Raises:
        InputError: It says something that no card says, or that its task has not, or a word that is
            no convention.
    """
    card: Card = make(Card, name, yaml.safe_load(text), name=name)
    for key in (*card.values, *card.notes):
        if key not in KEYS:
            raise InputError(f"{name}: a card says nothing of {key}")
    for key, words in {"task": TASKS, **MEANINGS}.items():
        if card.values.get(key, next(iter(words))) not in words:
            raise InputError(
                f"{name}: {key} is {card.values[key]!r}, but must be one of {', '.join(words)}"
            )
    if absent := [key for key in card.values if card.lacks(key)]:
        raise InputError(f"{name}: there is no {absent[0]} here")
    return card


def find_card(name: str) -> Card:
    """The card of a name.

    Raises:
        InputError: There is none; says which is meant, or where all are named.
    """
    if name not in cards():
        close = get_close_matches(name, cards(), n=1, cutoff=0.5)
        rest = f"did you mean {close[0]}?" if close else "`fourfold diff --list` names all"
        raise InputError(f"there is no recipe {name}; {rest}")
    return cards()[name]
