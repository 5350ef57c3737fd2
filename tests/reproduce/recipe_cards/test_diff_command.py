"""`fourfold diff`: cards and config files."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from fourfold import tasks
from fourfold.cli import main
from fourfold.reproduce.recipe_cards.cards import TASKS as CARD_TASKS
from fourfold.reproduce.recipe_cards.cards import cards
from fourfold.reproduce.recipe_cards.diff_command import TASK_OF_CLASS, read_config


def test_the_list_has_every_card(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(cards())


def test_two_cards(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "vaswani2017_base", "tensor2tensor_base"]) == 0
    page = capsys.readouterr().out
    assert re.search(r"norm_placement +post +pre", page)
    assert "A  0.00069877   from lr 1, schedule noam" in page
    assert "B  0.00098821   from lr 2, schedule noam" in page


def test_three_cards(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "vaswani2017_base", "tensor2tensor_base", "fairseq_base"]) == 0
    page = capsys.readouterr().out
    assert re.search(r"length_penalty_type +gnmt +gnmt +power\n", page)
    assert "     power: scores are divided by n^alpha\n" in page
    assert "Equal in all: task translation, n_layers 6" in page


def test_a_config_says_what_its_card_says(root: Path) -> None:
    values = read_config(str(root / "configs/vaswani2017/base.yaml")).values
    card = cards()["vaswani2017_base"].values
    # The package's recipe is the paper's, but for what the paper leaves open, and the biases that
    # the authors' first code has.
    said = {key: values[key] for key in card if key in values}
    assert said.pop("attention_bias") is True
    assert len(said) > 20
    assert said == {key: card[key] for key in said}
    assert "weight_decay_form" not in values  # there is none
    beyer = read_config(str(root / "configs/vit/s16_beyer2022.yaml")).values
    assert (beyer["lr"], beyer["weight_decay"], beyer["clip"]) == (1e-3, 0.1, 1.0)
    assert (beyer["batch_rows"], beyer["warmup_steps"]) == (1024, 10000)


def test_a_card_against_a_config(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    config = str(root / "configs/vit/s16_beyer2022.yaml")
    assert main(["diff", "beyer2022_s16", config]) == 0
    page = capsys.readouterr().out
    assert re.search(r"weight_decay +0.0001", page)
    assert "therefore all are equal" in page


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "RECIPE must be given two to 26 times, as a recipe card or a config file;"),
        (["bert_base"], "RECIPE must be given two to 26 times, as a recipe card or a config file;"),
        (
            ["bert_base"] * 27,
            "RECIPE must be given two to 26 times, as a recipe card or a config file;",
        ),
        (["bert_base", "bert_bose"], "did you mean bert_base?"),
        (
            ["bert_base", "qqqq"],
            "RECIPE must be one of annotated_transformer, ",
        ),
        (["bert_base", "configs/none.yaml"], "configs/none.yaml: the config file does not exist"),
        (
            ["bert_base", "configs/trainer/ddp.yaml"],
            "configs/trainer/ddp.yaml:5: data: Option 'num_workers' is not accepted",
        ),
        (["bert_base", "--lits"], "did you mean --list"),
    ],
)
def test_bad_input_is_one_sentence(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", *words]) == 2
    assert says in capsys.readouterr().err


def test_a_mistake_in_a_config_has_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file := tmp_path / "bad.yaml").write_text(
        "model:\n  class_path: Translation\n  init_args: {lrr: 3}\n"
    )
    assert main(["diff", "vaswani2017_base", str(file)]) == 2
    assert f"{file}:3: model.lrr is not a known key" in capsys.readouterr().err


def test_every_task_is_called_by_a_word_of_the_cards() -> None:
    assert set(TASK_OF_CLASS.values()) == set(CARD_TASKS)
    there = set(dir(tasks)) - {"Task", "load_task"}
    named = {name for name in there if name.endswith(tuple(TASK_OF_CLASS))}
    without_card = {
        *("Captioning", "ContrastiveLearning", "MaskedImageModeling", "RecurrentCaptioning"),
        *("SigmoidContrastiveLearning", "ReplacedTokenDetection", "SemanticSegmentation"),
    }
    assert there - named == without_card


def test_a_packaged_recipe_is_found_by_its_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["diff", "gpt2/tiny", "nanogpt_124M"]) == 0
    assert "A  gpt2/tiny: CausalLanguageModeling of fourfold" in capsys.readouterr().out


def test_configs_of_other_tasks(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    names = ("captions", "finetune", "resnet", "t5")
    assert main(["diff", *(str(root / "configs" / name / "tiny.yaml") for name in names)]) == 0
    rows = {w[0]: w[1:] for line in capsys.readouterr().out.splitlines() if (w := line.split())}
    assert rows["task"] == ["(open)", "downstream", "images", "translation"]
    assert rows["extra_length"] == ["(open)", "-", "-", "50"]
    assert rows["length"][1] != "(open)"


def test_a_masked_lms_length_is_that_of_its_rows(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(root / "configs/bert/base.yaml")
    assert main(["diff", "bert_base", config]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert not any(line.startswith("length ") for line in lines)
    assert "  A  131,072   from batch_rows 256, length 512*" in lines
    assert "A length: 128 for the first 900,000 steps, which have 32,768 tokens each" in lines
    assert "of each side of a pair" not in "".join(lines)


def test_an_encoder_decoder_of_ours_writes_50_more_than_it_reads(root: Path) -> None:
    values = read_config(str(root / "configs/vaswani2017/base.yaml")).values
    assert (values["extra_length"], values["task"]) == (50, "translation")
    assert "length" not in values  # rows are as long as their sentences
    beyer = read_config(str(root / "configs/vit/s16_beyer2022.yaml")).values
    assert not {"extra_length", "num_beams", "mlm_probability"} & beyer.keys()


def test_adam_takes_its_decay_into_the_gradient(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [root / "configs/gpt2/small.yaml", tmp_path / "adam.yaml"]
    text = files[0].read_text()
    assert "name: adamw" in text
    files[1].write_text(text.replace("name: adamw", "name: adam"))
    found = [read_config(str(file)).values["weight_decay_form"] for file in files]
    assert found == ["times_lr", "l2"]
    assert main(["diff", *map(str, files)]) == 0
    assert "l2: decay x weight is added to the gradient" in capsys.readouterr().out


def test_rows_of_a_length_are_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "nanogpt_124M", "llmc_124M"]) == 0
    page = capsys.readouterr().out
    assert "A  491,520   from batch_rows 12, length 1024, devices 8, accumulation 5" in page
    assert "B  524,288" in page


@pytest.mark.parametrize(
    ("trainer", "devices"),
    [
        ("{devices: [0, 1]}", 2),
        ("{devices: '0,1'}", 2),
        ("{devices: 4, num_nodes: 2}", 8),
        ("{devices: auto}", None),
        ("{devices: -1, num_nodes: 2}", None),
    ],
)
def test_devices_of_all_nodes_share_a_step(
    trainer: str, devices: int | None, root: Path, tmp_path: Path, capsys: Any
) -> None:
    config = yaml.safe_load((root / "configs/gpt2/small.yaml").read_text())
    config["trainer"].update(yaml.safe_load(trainer))
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(config))
    assert read_config(str(tmp_path / "a.yaml")).values.get("devices") == devices
    assert main(["diff", str(tmp_path / "a.yaml"), "nanogpt_124M"]) == 0
