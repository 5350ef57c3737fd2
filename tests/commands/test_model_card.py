"""The model card states what the files of a run record, and no more."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fourfold.commands.model_card import _changed
from fourfold.commands.recipe import make_parser, parse
from tests.fixtures.hf_models import make_model

Run = Callable[..., Any]
Train = Callable[[str], Path]


def read(card: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the front matter, and the recipe ({} if the card has none)."""
    front = yaml.safe_load(card.split("---\n")[1]) if card.startswith("---\n") else {}
    blocks = re.findall(r"```yaml\n(.*?)```", card, re.DOTALL)
    assert len(blocks) <= 1
    return front, yaml.safe_load(blocks[0]) if blocks else {}


def plain(config: Any) -> Any:
    content = yaml.safe_load(make_parser("x").dump(config))
    return {key: content[key] for key in ("model", "data", "trainer", "seed_everything")}


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("lm", {"pipeline_tag": "text-generation"}),
        ("mlm", {"pipeline_tag": "fill-mask"}),
        ("mt", {"pipeline_tag": "translation", "language": ["en", "de"]}),
        ("vit", {"pipeline_tag": "image-classification"}),
        ("classes", {"pipeline_tag": "text-classification"}),
        ("tags", {"pipeline_tag": "token-classification"}),
    ],
)
def test_recipe_has_the_options_that_differ(
    family: str, expected: dict[str, Any], run: Run, trained: Train, text: Path, here: Path
) -> None:
    assert run("export", trained(family), here / "there").code == 0
    card = (here / "there" / "README.md").read_text()
    front, recipe = read(card)
    assert front == {"library_name": "transformers", **expected}
    assert str(text) not in card  # a folder of this machine
    assert "{{" not in card.replace("{lang}", "")
    assert "None" not in card
    recorded = trained(family) / "config.yaml"
    assert len(yaml.safe_dump(recipe)) < len(recorded.read_text()) / 2
    # With the folders of the files, the recipe is the config of the run.
    absolute = re.sub(
        r"(\w+(?:\.\{lang\}|\.en|\.tsv|\.conll))$",
        rf"{text}/\1",
        yaml.safe_dump(recipe),
        flags=re.M,
    )
    (here / "recipe.yaml").write_text(absolute)
    parser = make_parser("x")
    again, before = (
        plain(parse(parser, ["--config", str(x)])) for x in (here / "recipe.yaml", recorded)
    )
    assert again == before


def test_metrics_have_split_and_step(run: Run, trained: Train, here: Path) -> None:
    directory = trained("lm")
    assert run("test", "--run_dir", directory).code == 0
    (directory / "metrics.csv").write_text("step,train/loss,val/loss\n2,5,4.5\n4,5,4.25\n9,3,1\n")
    last = directory / "checkpoints" / "last.ckpt"
    assert run("export", last, here / "there").code == 0
    card = (here / "there" / "README.md").read_text()
    assert "from last.ckpt (step 6)" in card
    assert "| val/loss | validation | 4.25 | step 4 |" in card
    assert "train/loss" not in card
    metrics = json.loads((directory / "metrics.json").read_text())
    tested = Path(metrics["run"]["checkpoint"]).name  # these weights are not the exported ones
    assert f"| test/loss | test | {metrics['test/loss']:.6g} | {tested} |" in card
    assert "No metric of a " not in card
    metrics["run"] = {"command": "fourfold evaluate"}  # as other commands write it
    (directory / "metrics.json").write_text(json.dumps(metrics))
    assert run("export", directory, here / "other").code == 0
    (directory / "metrics.json").unlink()
    (directory / "metrics.csv").unlink()
    assert run("export", directory, here / "again").code == 0
    card = (here / "again" / "README.md").read_text()
    assert "- No metric of a validation split" in card
    assert "- No metric of a test split" in card
    assert "## Metrics" not in card


@pytest.mark.parametrize(("name", "tag"), [("gpt2", "text-generation"), ("bert-encoder", None)])
def test_imported_model_has_no_run(
    name: str, tag: str | None, run: Run, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(name).save_pretrained(here / "theirs")
    assert run("import", here / "theirs", here / "x.ckpt").code == 0
    (here / "there").mkdir()
    monkeypatch.chdir(here / "there")
    assert run("export", here / "x.ckpt", ".").code == 0
    card = (here / "there" / "README.md").read_text()
    assert "# there\n" in card
    assert "## Data and training" not in card
    assert "from x.ckpt" in card
    assert "license" not in card.lower()
    tags = {"pipeline_tag": tag} if tag else {}
    assert read(card) == ({"library_name": "transformers", **tags}, {})


@pytest.mark.parametrize(
    "content",
    [
        "- a list",
        "model: 3\n",
        "model: {class_path: stranger.Model, init_args: [1]}\n",
        "model: &a {class_path: x, init_args: *a}\n",
        "{",
        "model:\n  class_path: 3\n",
        "\0",
    ],
)
def test_damaged_run_files_are_left_out(content: str, run: Run, trained: Train, here: Path) -> None:
    checkpoint = trained("lm") / "checkpoints" / "last.ckpt"
    for name in ("config.yaml", "metrics.csv", "metrics.json"):
        (here / "run" / "checkpoints").mkdir(parents=True, exist_ok=True)
        (here / "run" / name).write_text(content)
    (here / "run" / "checkpoints" / "last.ckpt").write_bytes(checkpoint.read_bytes())
    result = run("export", here / "run", here / "there")
    assert (result.code, result.err) == (0, "")
    assert "from last.ckpt" in (here / "there" / "README.md").read_text()


def test_class_of_a_stranger_is_not_imported(run: Run, trained: Train, here: Path) -> None:
    """The config of a run is text: fourfold export runs no code that it names."""
    (here / "stranger.py").write_text("open('ran', 'w').close()\nclass Model: ...\n")
    config = yaml.safe_load((trained("lm") / "config.yaml").read_text())
    config["model"]["class_path"] = config["data"]["class_path"] = "stranger.Model"
    config["trainer"]["callbacks"] = [{"class_path": "stranger.Model"}]
    (here / "run" / "checkpoints").mkdir(parents=True)
    (here / "run" / "config.yaml").write_text(yaml.safe_dump(config))
    checkpoint = trained("lm") / "checkpoints" / "last.ckpt"
    (here / "run" / "checkpoints" / "last.ckpt").write_bytes(checkpoint.read_bytes())
    assert run("export", here / "run", here / "there").code == 0
    assert not (here / "ran").exists()
    _, recipe = read((here / "there" / "README.md").read_text())
    assert recipe["model"]["class_path"] == "stranger.Model"
    assert recipe["model"]["init_args"]["config"]["d_model"] == 16


def test_secrets_are_left_out() -> None:
    values = {
        "hub": {"path": "a", "options": {"token": "SECRET", "storage_options": {"a": "SECRET"}}},
        "train": ["/mnt/SECRET/a.txt", ("~/SECRET/b.txt", "https://SECRET:SECRET@x.org/c.txt")],
        "url": "https://x.org/d.txt?v=1&access_token=SECRET",
        "logger": [{"init_args": {"api_key": "SECRET", "key": "SECRET", "n": 1}}],
        "max_tokens": 3,
        "tokenizer": {"vocab_size": 5},
        "separator": "/",
    }
    assert _changed(values) == {
        "hub": {"path": "a"},
        "train": ["a.txt", ["b.txt", "https://x.org/c.txt"]],
        "url": "https://x.org/d.txt?v=1&",
        "logger": [{"init_args": {"n": 1}}],
        "max_tokens": 3,
        "tokenizer": {"vocab_size": 5},
        "separator": "/",
    }


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("wikitext", ["wikitext"]),
        ("owner/a.b", ["owner/a.b"]),
        ("json", None),
        ("./texts", None),
        ("here", None),
        ("/mnt/alice/wikitext", None),
    ],
)
def test_card_of_a_dataset_of_the_hub(
    path: str, expected: list[str] | None, run: Run, trained: Train, here: Path
) -> None:
    (here / "here").mkdir()
    config = yaml.safe_load((trained("lm") / "config.yaml").read_text())
    config["data"]["init_args"] |= {"source": "hub", "hub": {"path": path, "name": "x"}}
    config["trainer"]["callbacks"] = [{"init_args": {"dirpath": "/home/alice"}}]
    (here / "run" / "checkpoints").mkdir(parents=True)
    (here / "run" / "config.yaml").write_text(yaml.safe_dump(config))
    checkpoint = here / "run" / "checkpoints" / "last.ckpt"
    checkpoint.write_bytes((trained("lm") / "checkpoints" / "last.ckpt").read_bytes())
    assert run("export", here / "run", here / "there").code == 0
    card = (here / "there" / "README.md").read_text()
    assert "alice" not in card
    assert read(card)[0].get("datasets") == expected
