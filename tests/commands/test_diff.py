"""`fourfold diff`: cards and config files."""

from pathlib import Path

import pytest

from fourfold.cli import main
from fourfold.commands.diff import read_config
from fourfold.papers.recipe_cards import cards


def test_the_list_has_every_card(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(cards())


def test_two_cards(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", "vaswani2017_base", "tensor2tensor_base"]) == 0
    page = capsys.readouterr().out
    assert "norm_placement      post                    pre" in page
    assert "A  0.00069877   from schedule noam" in page
    assert "B  0.00098821   from schedule noam" in page


def test_a_config_says_what_its_card_says(root: Path) -> None:
    values = read_config(str(root / "configs/vaswani2017/base.yaml")).values
    card = cards()["vaswani2017_base"].values
    # The package's recipe is the paper's, but for what the paper leaves open.
    said = {key: values[key] for key in card if key in values}
    assert len(said) > 20
    assert said == {key: card[key] for key in said}
    beyer = read_config(str(root / "configs/vit/s16_beyer2022.yaml")).values
    assert (beyer["lr"], beyer["weight_decay"], beyer["clip"]) == (1e-3, 0.1, 1.0)
    assert (beyer["batch_rows"], beyer["warmup_steps"]) == (1024, 10000)


def test_a_card_against_a_config(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    config = str(root / "configs/vit/s16_beyer2022.yaml")
    assert main(["diff", "beyer2022_s16", config]) == 0
    page = capsys.readouterr().out
    assert "weight_decay        0.0001" in page
    assert "so they are the same" in page


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "name two recipes"),
        (["bert_base"], "name two recipes"),
        (["bert_base", "bert_bose"], "did you mean bert_base?"),
        (["bert_base", "qqqq"], "Known are bert_base, beyer2022_s16"),
        (["bert_base", "configs/none.yaml"], "configs/none.yaml: there is no such config file"),
        (["bert_base", "--lits"], "did you mean --list"),
    ],
)
def test_bad_input_is_one_sentence(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", *words]) == 2
    assert says in capsys.readouterr().err
