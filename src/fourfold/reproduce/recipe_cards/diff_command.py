"""Print the differences between two or more recipes.

Values that mean different things are converted to one convention: length penalty, label smoothing,
weight decay, learning rate and batch. A recipe is a card, such as vaswani2017_base,
tensor2tensor_base or fairseq_big, a config file, or a recipe that `fourfold recipes` lists, such as
gpt2/small.

If folders are given, compare the run directories that they are or contain: print the options of
config.yaml that differ, the best validation metrics and the test metrics.
"""

# `cards` explains what a recipe card is. Config files are converted to recipe cards.
from collections import ChainMap
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from fourfold.commands.option_parser import OptionParser
from fourfold.commands.packaged_recipes import SUFFIXES, find_recipe, recipe_names
from fourfold.errors import InputError
from fourfold.reproduce.recipe_cards.cards import KEYS, TASKS_OF_KEY, Card, cards, find_card

MAX_RECIPES = 26  # each recipe is named by a letter
# Option of a config file by key of a card, for keys whose option has another name.
OPTION_OF_KEY = {
    "optimizer": "optimizer.name",
    **{key: f"optimizer.{key}" for key in ("bias_correction", "eps", "weight_decay", "lr")},
    "schedule": "schedule.name",
    **{key: f"schedule.{key}" for key in ("min_lr", "warmup_steps")},
    "clip": "gradient_clip_val",
    "steps": "max_steps",
    "epochs": "max_epochs",
    "accumulation": "accumulate_grad_batches",
    "batch_tokens": "max_tokens",
    "batch_rows": "batch_size",
    "mlm_probability": "masking.mlm_probability",
    "static_masks": "masking.dupe_factor",
}
# Task of a card by the end of the name of a Task class; the first entry that matches counts.
TASK_OF_CLASS = {
    "MaskedLanguageModeling": "masked_lm",
    "LanguageModeling": "causal_lm",
    "Translation": "translation",
    "TextToText": "translation",
    "ImageClassification": "images",
    "ConvolutionalClassification": "images",
    "Classification": "downstream",
    "QuestionAnswering": "downstream",
}
# Convention of weight decay (`weight_decay_form` of a card) of each optimizer.
DECAY_FORMS = {"adamw": "times_lr", "muon": "times_lr", "adam": "l2", "adadelta": "l2", "sgd": "l2"}


def main(argv: Sequence[str]) -> int:
    """Print the differences between two or more recipe cards or config files.

    With `--list`, only the list of the recipe cards is printed.

    Raises:
        InputError: A recipe is unknown or a config is invalid.
    """
    parser = OptionParser(prog="fourfold diff", description=__doc__)
    parser.add_argument("recipes", nargs="*", metavar="RECIPE")
    parser.add_argument("--list", action="store_true", help="list the cards with their sources")
    parser.add_argument("--out", metavar="FILE", help="PNG file with the curves of run directories")
    options = parser.parse_intermixed_args(list(argv))
    if options.list:
        width = max(map(len, cards()))
        print("\n".join(f"{c.name:<{width}}  {c.title} ({c.source})" for c in cards().values()))
        return 0
    if options.recipes and all(Path(name).is_dir() for name in options.recipes):
        return compare_folders(options.recipes, options.out)
    if not 2 <= len(options.recipes) <= MAX_RECIPES:
        hint = "as a recipe card or a config file; `fourfold diff --list` shows the cards"
        raise InputError(f"must be given two to {MAX_RECIPES} times, {hint}", option="RECIPE")
    packaged = recipe_names()
    recipes = [
        read_config(name) if Path(name).suffix in SUFFIXES or name in packaged else find_card(name)
        for name in options.recipes
    ]
    from fourfold.reproduce.recipe_cards.differences import compare

    print("\n".join(compare(recipes)))
    return 0


def compare_folders(folders: Sequence[str], out: str | None) -> int:
    """Compare run directories, or those in folders, and return 0; `out` is a file for the curves.

    Raises:
        InputError: There are more than 26 runs, a folder has none, or a config.yaml is damaged.
    """
    from fourfold.commands import compare_runs

    runs = [run for folder in folders for run in compare_runs.find_runs(Path(folder))]
    if len(runs) > MAX_RECIPES:
        raise InputError(f"must be at most {MAX_RECIPES} runs, got {len(runs)}", option="RECIPE")
    named = dict(zip(ascii_uppercase, runs, strict=False))
    compare_runs.show_runs(named, Path(out) if out else None)
    return 0


def read_config(name: str) -> Card:
    """Convert a config file to a recipe card.

    Raises:
        InputError: The config is invalid or names no model.
    """
    from fourfold.checkpoints.schema import flatten
    from fourfold.commands.recipe import LENGTH_KEYS, make_parser, parse
    from fourfold.commands.train.options import count_devices
    from fourfold.generation.inputs import MAX_EXTRA_TOKENS

    try:
        config = parse(make_parser("fourfold diff"), ["--config", str(find_recipe(name))]).as_dict()
    except InputError as error:
        raise (error if error.file else error.in_file(name)) from None
    kind, data = config["model"]["class_path"].rsplit(".", 1)[-1], config["data"]["init_args"]
    # The length of sequences is an option of the data; max_len of the model is only its limit.
    length = next((data[key] for key in LENGTH_KEYS if key in data), None)
    task = next((task for name, task in TASK_OF_CLASS.items() if kind.endswith(name)), None)
    devices = count_devices(config["trainer"]["devices"])
    n_devices = devices and devices * int(config["trainer"]["num_nodes"])
    model = config["model"]["init_args"]
    trees = map(flatten, (model["config"], model, data, config["trainer"], config))
    own = {"length": length, "task": task, "devices": n_devices}
    settings: Mapping[str, Any] = ChainMap(own, *trees)  # the first value of a key counts
    own |= dict(zip(("beta1", "beta2"), settings.get("optimizer.betas", ()), strict=False))
    if settings.get("vocab_size") is None:
        own["vocab_size"] = settings.get("tokenizer.vocab_size")
    values: dict[str, Any] = {key: settings.get(OPTION_OF_KEY.get(key, key)) for key in KEYS}
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
