from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fourfold.commands.config_files import config_files, is_given, locate_value
from fourfold.core.errors import InputError

Run = Callable[..., Any]


def test_files_named_on_the_command_line() -> None:
    arguments = ["fit", "--config", "a.yaml", "--trainer.x", "1", "-c=b.yaml", "--config", "{a: 1}"]
    assert config_files(arguments) == [Path("a.yaml"), Path("b.yaml")]


def test_what_is_given(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("data:\n  init_args:\n    seed: 3\n")
    assert is_given("data.seed", ["--config", str(file)])
    assert is_given("data.seed", ["--data.init_args.seed=3"])
    inline = ['--config={"data": {"init_args": {"seed": 5}}}']
    assert is_given("data.seed", inline)
    assert not is_given("data.rows", inline)
    assert not is_given("data.rows", ["--config", str(file), "--data.seed", "3"])
    # Where another file stands for a part.
    (tmp_path / "b.yaml").write_text("seed: 3\n")
    (tmp_path / "c.yaml").write_text("data: b.yaml\nmodel: Translation\n")
    assert is_given("data.seed", ["--config", str(tmp_path / "c.yaml")])
    assert is_given("data.seed", ["--data", str(tmp_path / "b.yaml")])
    assert not is_given("data.rows", ["--data", str(tmp_path / "b.yaml")])
    assert not is_given("model.seed", ["--config", str(tmp_path / "c.yaml")])


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("n_heads is 5, but must be at least 6", 3),
        ("d_model 16 is not divisible by n_heads 5", 2),
        ("tags is [], but there must be one", 6),
        ("lr is 0.001, but must be above 1", 4),  # as YAML has it: 1e-3
        ("n_heads is 6, but must be at least 7", None),  # another than the file's
        ("train.tsv, line 7: n_heads 5", None),  # about data
        ("d_ff is 3, but must be at least 4", None),  # from the command line
    ],
)
def test_a_value_is_found_by_the_words_of_its_class(
    said: str, line: int | None, tmp_path: Path
) -> None:
    file = tmp_path / "a.yaml"
    values = ("d_model: 16", "n_heads: 5", "lr: 1e-3", "d_ff: 3", "tags: []")
    file.write_text("model: {init_args: {config: {\n " + ",\n ".join(values) + "}}}")
    arguments = ["--config", str(file), "--model.config.d_ff=3"]
    begin = f"{file}, line {line}: " if line else ""
    assert str(locate_value(InputError(said), arguments)) == begin + said


def test_later_files_and_options_win(run: Run, configs: dict[str, Path], here: Path) -> None:
    (here / "more.yaml").write_text(
        "trainer: {max_steps: 7, precision: bf16-mixed}\n"
        "model: {init_args: {config: {d_ff: 99, n_classes: 12}}}"
    )
    call = ["fit", "--config", configs["vit"], "--config", "more.yaml", "--trainer.max_steps", 8]
    result = run(*call, "--model.config.n_layers=3", "--model.config.n_classes=null",
                 "--print_config")  # fmt: skip
    assert result.code == 0, result.err
    config = yaml.safe_load(result.out)
    assert config["trainer"]["max_steps"] == 8  # the option, over both files
    assert config["trainer"]["precision"] == "bf16-mixed"  # the second file
    assert config["trainer"]["log_every_n_steps"] == 2  # the first
    shape = config["model"]["init_args"]["config"]
    assert shape["n_classes"] is None
    assert (shape["d_model"], shape["d_ff"], shape["n_layers"]) == (16, 99, 3)
