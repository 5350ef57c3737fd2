"""The command `fourfold diff`: differences between recipe cards and config files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fourfold.commands.option_parser import OptionParser
from fourfold.errors import InputError
from fourfold.reproduce.recipe_cards.cards import KEYS, TASKS_OF_KEY, Card, cards, find_card

MAX_RECIPES = 26  # each recipe is named by a letter
# Option of a config, below its model, data and trainer, for keys with another name.
OPTION_OF_KEY = {
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
    "mlm_probability": "masking.mlm_probability",
    "static_masks": "masking.dupe_factor",
}
# Task classes of this package by the task of a card.
TASKS = {
    "translation": ("Translation", "CompositeTranslation", "TextToText"),
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
# Convention of weight decay of each optimizer.
DECAY_FORMS = {"adamw": "times_lr", "adam": "l2", "sgd": "l2"}


DESCRIPTION = """\
Print the differences between two or more recipes, with values that mean different things
converted to one convention: length penalty, label smoothing, weight decay, learning rate and
batch. A recipe is a card, such as vaswani2017_base, tensor2tensor_base or fairseq_big, or a config
file of this package, such as configs/gpt2/small.yaml."""


def main(argv: Sequence[str]) -> int:
    """Compare two or more recipes, or list the recipe cards.

    Raises:
        InputError: A recipe is unknown or a config is invalid.
    """
    parser = OptionParser(prog="fourfold diff", description=DESCRIPTION)
    parser.add_argument("recipes", nargs="*", metavar="RECIPE")
    parser.add_argument("--list", action="store_true", help="list the cards with their sources")
    options = parser.parse_intermixed_args(list(argv))
    if options.list:
        width = max(map(len, cards()))
        print("\n".join(f"{c.name:<{width}}  {c.title} ({c.source})" for c in cards().values()))
        return 0
    if not 2 <= len(options.recipes) <= MAX_RECIPES:
        raise InputError(
            f"must be given two to {MAX_RECIPES} times, as a recipe card or a config file;"
            " `fourfold diff --list` shows the cards",
            option="RECIPE",
        )
    recipes = [_card(name) for name in options.recipes]
    from fourfold.reproduce.recipe_cards.compare import compare

    print("\n".join(compare(recipes)))
    return 0


def _card(name: str) -> Card:
    if Path(name).suffix in (".yaml", ".yml"):
        return read_config(name)
    return find_card(name)


def read_config(name: str) -> Card:
    """Convert a config file to a card.

    Raises:
        InputError: The config is invalid or names no model.
    """
    from fourfold.checkpoints.format import flatten
    from fourfold.commands.recipe import LENGTH_KEYS, make_parser, parse
    from fourfold.commands.train.options import count_devices
    from fourfold.generation.inputs import MAX_EXTRA_TOKENS

    given = ["--config", name]
    try:
        config = parse(make_parser("fourfold diff"), given).as_dict()
    except InputError as error:
        if error.option in ("model", "data and model"):
            raise InputError("the config names no model", file=name) from error
        raise
    kind, data = config["model"]["class_path"].rsplit(".", 1)[-1], config["data"]["init_args"]
    # The length of rows is an option of the data; max_len of the model is only its limit.
    length = next((data[key] for key in LENGTH_KEYS if key in data), None)
    task = next((task for task, kinds in TASKS.items() if kind in kinds), None)
    devices = count_devices(config["trainer"]["devices"])
    n_devices = devices and devices * int(config["trainer"]["num_nodes"])
    settings: dict[str, Any] = {"length": length, "task": task, "devices": n_devices}
    for tree in (
        config["model"]["init_args"]["config"],
        config["model"]["init_args"],
        data,
        config["trainer"],
        {key: value for key, value in config.items() if not isinstance(value, dict)},
    ):
        settings = {**flatten(tree), **settings}
    settings |= dict(zip(("beta1", "beta2"), settings.get("optimizer.betas", ()), strict=False))
    if settings.get("vocab_size") is None:
        settings["vocab_size"] = settings.get("tokenizer.vocab_size")
    values = {key: settings[k] for key in KEYS if (k := OPTION_OF_KEY.get(key, key)) in settings}
    # Values that depend on data or machine are omitted: null, -1 steps, devices auto.
    values = {key: v for key, v in values.items() if v is not None and v not in ("auto", -1)}
    if values.get("weight_decay"):
        values["weight_decay_form"] = DECAY_FORMS[values["optimizer"]]
    if "bias" in values:
        values["attention_bias"] = values["bias"]  # one option for all layers
    if task == "translation":
        values["extra_length"] = MAX_EXTRA_TOKENS  # of every encoder-decoder of this package
    values = {key: v for key, v in values.items() if task in TASKS_OF_KEY.get(key, (task,))}
    return Card(name, f"{kind} of fourfold", name, values)
