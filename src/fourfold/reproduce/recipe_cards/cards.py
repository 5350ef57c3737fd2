"""Recipe cards: hyperparameters of papers and toolkits with their conventions and sources.

A recipe card is a YAML file that holds the hyperparameters of one published training. The same
number means different things under different conventions, such as different formulas of label
smoothing. A card therefore also holds the conventions, under the keys `length_penalty_type`,
`label_smoothing_type`, `weight_decay_form` and `schedule`. `MEANINGS` lists the possible values of
these keys.
"""

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from fourfold.core.validation import check_choice
from fourfold.reproduce.load_tables import DATA
from fourfold.reproduce.tables import make

TASKS = ("translation", "masked_lm", "causal_lm", "downstream", "images")
# Keys of a card.
SIZE = ("n_layers", "d_model", "d_ff", "n_heads")
BLOCK = ("feed_forward", "activation", "norm_placement", "norm_eps")
DROPOUT = ("dropout", "attn_dropout", "ff_dropout", "drop_path")
LAYERS = ("positions", "pool", "tie_embeddings", "bias", "attention_bias", "vocab_size")
OPTIMIZER = ("optimizer", "bias_correction", "beta1", "beta2", "eps")
DECAY = ("weight_decay", "weight_decay_form", "clip")
SCHEDULE = ("schedule", "lr", "min_lr", "warmup_steps", "steps", "epochs")
BATCH = ("batch_tokens", "batch_rows", "length", "devices", "accumulation")
SMOOTHING = ("label_smoothing", "label_smoothing_type")
MASKING = ("mlm_probability", "static_masks")
BEAM_SEARCH = ("num_beams", "length_penalty", "length_penalty_type", "extra_length")
# All keys in display order.
KEYS = (
    *("task", *SIZE, *BLOCK, *DROPOUT, *LAYERS),
    *(*OPTIMIZER, *DECAY, *SCHEDULE, *BATCH),
    *(*SMOOTHING, *MASKING, "average_last_checkpoints", *BEAM_SEARCH),
)
# Tasks that a key applies to. Keys that are missing here apply to all tasks.
TASKS_OF_KEY = {
    **dict.fromkeys(MASKING, ("masked_lm",)),
    "pool": ("images",),
    **dict.fromkeys(("vocab_size", "batch_tokens"), TASKS[:-1]),
    "length": ("masked_lm", "causal_lm", "downstream"),
    "label_smoothing": ("translation", "downstream", "images"),
    **dict.fromkeys(("label_smoothing_type", *BEAM_SEARCH), ("translation",)),
}
# Key of the number that a convention applies to. If the number is 0, no convention is needed.
CONVENTION_OF = {"weight_decay_form": "weight_decay", "label_smoothing_type": "label_smoothing"}
# Conventions and their meanings.
MEANINGS = yaml.safe_load(Path(__file__).with_name("meanings.yaml").read_text("utf-8"))


@dataclass(frozen=True)
class Card:
    """Hyperparameters of one training, as stated by a paper, a toolkit or a config file."""

    name: str  # on the command line
    title: str
    source: str  # file and commit, or section of a paper, that the values were read from
    values: dict[str, Any]  # by key of `KEYS`; those that the source does not state are missing
    notes: dict[str, str] = field(default_factory=dict)  # by key

    def lacks(self, key: str) -> bool:
        """Return True if a hyperparameter does not apply to this recipe card.

        There are two cases. The hyperparameter may belong to another task than the card. It may
        also be the convention of a number that is 0 in the card, such as `label_smoothing_type` if
        `label_smoothing` is 0.
        """
        task = self.values.get("task")
        is_other_task = task is not None and task not in TASKS_OF_KEY.get(key, TASKS)
        return is_other_task or self.values.get(CONVENTION_OF.get(key, "")) == 0


@cache
def cards() -> dict[str, Card]:
    """Return all recipe cards (hyperparameters of published trainings) of the package, by name."""
    files = sorted((DATA / "cards").glob("*.yaml"))
    return {file.stem: read_card(file.stem, file.read_text(encoding="utf-8")) for file in files}


def read_card(name: str, text: str) -> Card:
    """Parse the YAML file of one recipe card.

    Raises:
        InputError: A field is missing or unknown.
    """
    return make(Card, name, yaml.safe_load(text), name=name)


def find_card(name: str) -> Card:
    """Return the recipe card of the package with a given name.

    Raises:
        InputError: The name is unknown. The message lists the known names.
    """
    check_choice("RECIPE", name, tuple(cards()))
    return cards()[name]
