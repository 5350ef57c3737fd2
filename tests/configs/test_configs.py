"""Every recipe in configs parses and builds a model of the expected size; tiny recipes train."""

import re
from dataclasses import replace
from inspect import signature
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch
import yaml

from fourfold.analysis.flops import parameters
from fourfold.cli import main
from fourfold.commands.recipe import make_parser, parse, read_recipe
from fourfold.commands.train.parser import Parser
from fourfold.data.text.synthetic_sequences import ADDITIONS
from fourfold.optim import OptimizerConfig
from fourfold.reproduce.recipe_cards.cards import find_card
from fourfold.tasks import load_task

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "configs").rglob("*.yaml"))
NAMES = [str(file.relative_to(ROOT / "configs").with_suffix("")) for file in FILES]
RECIPES = [name for name in NAMES if not name.startswith("trainer/")]
OVERLAYS = [name for name in NAMES if name.startswith("trainer/")]
TINY = [name for name in RECIPES if name.split("/")[1].startswith("tiny")]

# Number of parameters, and the vocabulary size or number of classes that the data provide.
GOLDEN = {
    name: entry if isinstance(entry, dict) else {"parameters": entry}
    for name, entry in yaml.safe_load((ROOT / "tests/golden/parameters.yaml").read_text()).items()
}

PAPERS = {
    "vaswani2017/base": 63_082_496,
    "vaswani2017/big": 214_245_376,
    "bert/base": 110_106_428,
    "bert/large": 336_226_108,
    "roberta/base": 124_697_433,
    "roberta/large": 355_412_057,
    "electra/small": 14_196_219,
    "gpt1/base": 116_534_784,
    "gpt2/small": 124_439_808,
    "gpt2/medium": 354_823_168,
    "gpt2/large": 774_030_080,
    "gpt2/xl": 1_557_611_200,
    "clip/b32": 151_277_313,
    "t5/small": 60_506_624,
    "vit/ti16": 5_717_416,
    "vit/s16": 22_050_664,
    "vit/b16": 86_567_656,
    "vit/b32": 88_224_232,
    "vit/l16": 304_326_632,
    "vit/l32": 306_535_400,
    "vit/h14": 632_045_800,
    "deit/ti": 5_717_416,
    "deit/s": 22_050_664,
    "deit/b": 86_567_656,
    "deit/ti_distilled": 5_910_800,
    "deit/s_distilled": 22_436_432,
    "deit/b_distilled": 87_338_192,
}


def path(name: str) -> str:
    return str(ROOT / "configs" / f"{name}.yaml")


@pytest.fixture(scope="module")
def parser() -> Parser:
    return make_parser("test")


def test_parameter_counts_cover_all_recipes() -> None:
    assert sorted(GOLDEN) == RECIPES


def test_parameter_counts_of_the_papers() -> None:
    assert {name: GOLDEN[name] for name in PAPERS} == {
        n: {"parameters": c} for n, c in PAPERS.items()
    }


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_builds_and_has_its_parameters(name: str, parser: Parser) -> None:
    from_data = {key: value for key, value in GOLDEN[name].items() if key != "parameters"}
    config = parse(parser, ["--config", path(name)])
    for field, value in from_data.items():
        assert config["model"]["init_args"]["config"][field] is None
        config["model"]["init_args"]["config"][field] = value
    recipe = read_recipe(parser, config)
    assert parameters(recipe.task.model).total == GOLDEN[name]["parameters"]
    assert all(p.is_meta for p in recipe.task.model.parameters())


@pytest.mark.parametrize("name", RECIPES)
def test_fit_parses_every_recipe(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--config", path(name), "--print_config"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["data"]["class_path"].startswith("fourfold.")


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_names_its_source_and_command(name: str) -> None:
    text = Path(path(name)).read_text()
    head = text[: text.index("\nmodel:")]
    assert all(line.startswith("#") for line in head.splitlines())
    assert "Expected:" in head
    # A recipe without training is only tested.
    assert re.search(rf"fourfold (fit|test) --config {name}(\s|$)", head)
    schema, title = head.splitlines()[:2]
    assert schema == "# yaml-language-server: $schema=../schema.json"  # for editors
    assert len(title) <= 92, "`fourfold recipes` prints it"
    for file in re.findall(r"configs/[\w/]+\.yaml", head):
        assert (ROOT / file).is_file(), file
    if counts := re.findall(r"Parameters: ([\d,]+\d)", head):
        assert int(counts[0].replace(",", "")) == GOLDEN[name]["parameters"]
    assert (name in PAPERS) <= bool(counts)


@pytest.mark.parametrize("name", RECIPES)
def test_weight_decay_of_a_recipe_and_of_another_optimizer(name: str, parser: Parser) -> None:
    """A decay for adamw must not become an L2 penalty of sgd, unless the recipe states it."""
    model = yaml.safe_load(Path(path(name)).read_text())["model"]
    stated = model["init_args"].get("optimizer", {})
    default = signature(resolve_name(model["class_path"])).parameters["optimizer"].default

    def optimizer(*options: str) -> OptimizerConfig:
        parsed = parse(parser, ["--config", path(name), *options])
        found = parsed["model"]["init_args"]["optimizer"]
        return found if isinstance(found, OptimizerConfig) else OptimizerConfig(**vars(found))

    own = optimizer()
    assert own.name == stated.get("name", default.name)
    assert own.weight_decay == stated.get("weight_decay", default.weight_decay)
    other = next(kind for kind in ("sgd", "adam") if kind != default.name)
    corrected = "--model.optimizer.bias_correction=true"  # adamw alone supports false
    changed = optimizer(corrected, f"--model.optimizer.name={other}")
    decay = stated.get("weight_decay", 0.0)
    assert changed == replace(own, name=other, weight_decay=decay, bias_correction=True)
    same = optimizer(corrected, "--model.optimizer.name=sgd", "--model.optimizer.weight_decay=0.25")
    assert same.weight_decay == 0.25


@pytest.mark.parametrize(
    "name",
    ["bert/base", "bert/large", "bert/left_to_right", "finetune/bert_glue", "finetune/bert_squad"],
)
def test_recipes_of_bert_use_the_optimizer_of_bert(name: str, parser: Parser) -> None:
    args = parse(parser, ["--config", path(name)])["model"]["init_args"]
    card = find_card("bert_base").values
    for key in ("bias_correction", "eps", "weight_decay"):
        assert getattr(args["optimizer"], key) == card[key]


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_tested_on_validation_data_keeps_no_best_checkpoint(
    name: str, parser: Parser
) -> None:
    """Otherwise the best of many validations would be reported, which no paper does."""
    config = parse(parser, ["--config", path(name)])
    kind, args = config["data"]["class_path"].rsplit(".", 1)[-1], config["data"]["init_args"]
    parts = args.get("val"), args.get("test")
    one = kind == "GlueData" or args.get("source") in ("imagenet", "images/flowers128")
    one |= args.get("task") in ADDITIONS
    if one or (isinstance(parts[0], str | list) and parts[0] == parts[1]):
        assert config["checkpoint"]["save_top_k"] == 0


@pytest.mark.parametrize("overlay", OVERLAYS)
@pytest.mark.parametrize("name", TINY)
def test_overlay_works_with_every_family(overlay: str, name: str, parser: Parser) -> None:
    config = parse(parser, ["--config", path(name), "--config", path(overlay)])
    wanted = yaml.safe_load(Path(path(overlay)).read_text())
    for key, value in wanted["trainer"].items():
        assert config["trainer"][key] == value
    alone = parse(parser, ["--config", path(name)])
    assert config["model"] == alone["model"]


def test_every_family_has_a_tiny_recipe() -> None:
    families = {name.split("/")[0] for name in RECIPES} - {"quickstart"}  # these recipes are small
    assert {f"{family}/tiny" for family in families} <= set(TINY)


@pytest.mark.parametrize("name", TINY)
def test_tiny_recipe_trains(name: str, tmp_path: Path) -> None:
    options = {
        "--trainer.max_steps": "3",
        "--trainer.max_epochs": "-1",
        "--trainer.accelerator": "cpu",
        "--trainer.devices": "1",
        "--trainer.limit_val_batches": "1",
        "--trainer.num_sanity_val_steps": "0",
        "--tensorboard": "false",
        "--run_dir": str(tmp_path / "run"),
    }
    words = [word for option in options.items() for word in option]
    assert main(["fit", "--config", path(name), *words]) == 0
    file = tmp_path / "run" / "checkpoints" / "last.ckpt"
    assert torch.load(file, weights_only=True)["global_step"] == 3
    weights = list(load_task(file).model.parameters())
    assert sum(w.numel() for w in weights) == GOLDEN[name]["parameters"]
    assert all(w.isfinite().all() for w in weights)
