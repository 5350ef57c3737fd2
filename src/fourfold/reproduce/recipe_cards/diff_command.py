"""`fourfold diff`: recipes side by side, only what differs, and what it comes to.

A recipe is a card of the package, or a config file of this package.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fourfold.commands.inference import OptionParser
from fourfold.core.errors import InputError
from fourfold.papers.recipe_cards import KEYS, ONLY, Card, cards, find_card

MOST = 26  # recipes: each is called by a letter
# What a config calls by another name, below its model, data and trainer.
ELSEWHERE = {
    "optimizer": "optimizer.name",
    "bias_correction": "optimizer.bias_correction",
    "eps": "optimizer.eps",
    "weight_decay": "optimizer.weight_decay",
    "lr": "optimizer.lr",
    "schedule": "schedule.name",
    "min_lr": "schedule.min_lr",
    "warmup_steps": "schedule.warmup_steps",
    "clip": "gradient_clip_val",
    "steps": "max_steps",
    "epochs": "max_epochs",
    "accumulation": "accumulate_grad_batches",
    "batch_tokens": "max_tokens",
    "batch_rows": "batch_size",
    "mask_rate": "masking.rate",
    "static_masks": "masking.static",
    "averaged": "average_last",
}
# The tasks of this package in the words of cards; of others nothing is known to be absent.
TASKS = {
    "translation": ("Translation", "JoinedTranslation", "TextToText"),
    "masked_lm": ("MaskedLanguageModeling",),
    "causal_lm": ("CausalLanguageModeling", "RecurrentLanguageModeling"),
    "downstream": (
        "SequenceClassification",
        "CausalSequenceClassification",
        "RecurrentSequenceClassification",
        "TokenClassification",
        "QuestionAnswering",
    ),
    "images": ("ImageClassification", "ConvolutionalClassification"),
}
# How the optimizers of this package take a weight decay.
FORMS = {"adamw": "times_lr", "adam": "l2", "sgd": "l2"}


def main(argv: Sequence[str]) -> int:
    """Print the comparison of two recipes or more, or the cards that there are.

    Raises:
        InputError: A recipe that is not known, or a config that is wrong.
    """
    parser = OptionParser(prog="fourfold diff", add_help=False, allow_abbrev=False)
    parser.add_argument("recipes", nargs="*")
    parser.add_argument("--list", action="store_true")
    options = parser.parse_intermixed_args(list(argv))
    if options.list:
        width = max(map(len, cards()))
        print("\n".join(f"{c.name:<{width}}  {c.title} ({c.source})" for c in cards().values()))
        return 0
    if not 2 <= len(options.recipes) <= MOST:
        raise InputError(
            f"name two to {MOST} recipes, cards or config files; `fourfold diff --list` has them"
        )
    found = [_card(name) for name in options.recipes]
    from fourfold.papers.differences import compare

    print("\n".join(compare(found)))
    return 0


def _card(name: str) -> Card:
    if Path(name).suffix in (".yaml", ".yml"):
        return read_config(name)
    return find_card(name)


def read_config(name: str) -> Card:
    """A config file as a card.

    Raises:
        InputError: Whatever is wrong with it.
    """
    from fourfold.commands.config_files import locate_value
    from fourfold.commands.recipe import LENGTH_KEYS, devices_of, make_parser, parse
    from fourfold.generation.prompts import EXTRA
    from fourfold.tasks.plain import flat

    given = ["--config", name]
    try:
        config = parse(make_parser("fourfold diff"), given).as_dict()
    except InputError as error:
        if str(error).startswith("model must be given"):
            raise InputError(f"{name}: is no recipe, for it names no model") from error
        raise locate_value(error, given) from error
    kind, data = config["model"]["class_path"].rsplit(".", 1)[-1], config["data"]["init_args"]
    # A model's max_len is how long a row may be; how long it is is said by the data.
    length = next((data[key] for key in LENGTH_KEYS if key in data), None)
    task = next((task for task, kinds in TASKS.items() if kind in kinds), None)
    devices = devices_of(config["trainer"]["devices"])
    together = devices and devices * int(config["trainer"]["num_nodes"])
    said: dict[str, Any] = {"length": length, "task": task, "devices": together}
    for tree in (
        config["model"]["init_args"]["config"],
        config["model"]["init_args"],
        data,
        config["trainer"],
        {key: value for key, value in config.items() if not isinstance(value, dict)},
    ):
        said = {**flat(tree), **said}
    said |= dict(zip(("beta1", "beta2"), said.get("optimizer.betas", ()), strict=False))
    if said.get("vocab_size") is None:
        said["vocab_size"] = said.get("tokenizer.vocab_size")
    values = {key: said[k] for key in KEYS if (k := ELSEWHERE.get(key, key)) in said}
    # What is left to data or machine is not said: null, -1 steps, devices auto.
    values = {key: v for key, v in values.items() if v is not None and v not in ("auto", -1)}
    if values.get("weight_decay"):
        values["weight_decay_form"] = FORMS[values["optimizer"]]
    if "bias" in values:
        values["attention_bias"] = values["bias"]  # one switch for all
    if task == "translation":
        values["extra_length"] = EXTRA  # of every encoder-decoder here
    values = {key: v for key, v in values.items() if task in ONLY.get(key, (task,))}
    return Card(name, f"{kind} of fourfold", name, values)
