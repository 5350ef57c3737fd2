from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from fourfold.commands.config_files import config_files, expand_arguments, locate
from fourfold.commands.recipe import make_parser
from fourfold.commands.train.parser import parse_config
from fourfold.errors import InputError

Run = Callable[..., Any]


def test_config_files_are_read_from_the_command_line() -> None:
    arguments = [
        "fit",
        "--config",
        "a.yaml",
        "--trainer.x",
        "1",
        "--config=b.yaml",
        "--config",
        "{a: 1}",
    ]
    assert config_files(arguments) == [Path("a.yaml"), Path("b.yaml")]


def test_parsed_config_tells_what_the_user_gave(configs: dict[str, Path], tmp_path: Path) -> None:
    parser = make_parser("fourfold fit")
    (tmp_path / "data.yaml").write_text("class_path: fourfold.data.ImageData\n")

    def given(*more: str) -> Any:
        return parse_config(parser, ["--config", str(configs["vit"]), *more])[1]

    assert "data.init_args.batch_size" in given()
    assert "data.init_args.seed" not in given()
    assert "data.init_args.seed" in given("--data.seed=3")
    assert "data.init_args.seed" in given("--data.init_args.seed", "3")
    assert "data.init_args.seed" in given('--config={"data": {"init_args": {"seed": 5}}}')
    assert "data.init_args.seed" not in given("--data", str(tmp_path / "data.yaml"))
    (tmp_path / "data.yaml").write_text("class_path: ImageData\ninit_args: {seed: 3}\n")
    assert "data.init_args.seed" in given("--data", str(tmp_path / "data.yaml"))


def test_error_of_a_key_gets_file_and_line(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("model:\n  init_args:\n    config:\n      n_heads: x\n      d_ff: y\n")
    arguments = ["--config", str(file), "--model.config.d_ff=3"]
    error = InputError("must be of type int, got x", option="model.config.n_heads")
    assert str(locate(error, arguments)) == f"{file}:4: {error}"
    on_command_line = InputError("must be of type int, got y", option="model.config.d_ff")
    assert locate(on_command_line, arguments) is on_command_line
    file.write_text("data:\n  init_args:\n    batch_size: 0\n    val: {seed: 1}\n    seed: x\n")
    of_constructor = InputError("must be at least 1, got 0", option="batch_size")
    assert str(locate(of_constructor, arguments)) == f"{file}:3: data.{of_constructor}"
    given = [*arguments, "--data.batch_size=0"]
    assert str(locate(of_constructor, given)) == f"data.{of_constructor}"
    ambiguous = InputError("must be of type int, got x", option="seed")
    assert locate(ambiguous, arguments) is ambiguous
    of_data = InputError("the row has 3 columns", file="a.tsv", line=7)
    assert locate(of_data, arguments) is of_data


def test_option_names_take_dashes_and_underscores() -> None:
    arguments = ["--run-dir", "my-run", "--trainer.max-steps=3", "--data.train", "a-b.txt"]
    assert expand_arguments(arguments) == [
        *("--run_dir", "my-run", "--trainer.max_steps=3", "--data.train", "a-b.txt"),
    ]
    assert expand_arguments(["-c", "{a: 1}", "-c={b: 2}"]) == [
        *("--config", "{a: 1}", "--config", "{b: 2}"),
    ]


def test_run_directory_alone_supplies_its_config(tmp_path: Path) -> None:
    arguments = ["--run_dir", str(tmp_path)]
    assert expand_arguments(arguments) == arguments
    config = tmp_path / "config.yaml"
    config.write_text("model: {}\n")
    assert expand_arguments(arguments, evaluates=True) == ["--config", str(config), *arguments]
    given = ["--config", str(config), *arguments]
    assert expand_arguments(given, evaluates=True) == given
    longer = [*arguments, "--trainer.max_steps", "3"]  # of `fit`
    assert expand_arguments(longer) == ["--config", str(config), *longer]
    for other in (["--model", "Translation"], ["--data=TranslationData"]):
        assert expand_arguments([*arguments, *other]) == [*arguments, *other]


def test_later_files_and_options_override_earlier_ones(
    run: Run, configs: dict[str, Path], here: Path
) -> None:
    (here / "more.yaml").write_text(
        "trainer: {max_steps: 7, precision: bf16-mixed}\n"
        "model: {init_args: {config: {d_ff: 99, n_classes: 12}}}"
    )
    call = ["fit", "--config", configs["vit"], "--config", "more.yaml", "--trainer.max_steps", 8]
    result = run(
        *call, "--model.config.n_layers=3", "--model.config.n_classes=null", "--print_config"
    )
    assert result.code == 0, result.err
    config = yaml.safe_load(result.out)
    assert config["trainer"]["max_steps"] == 8  # the option overrides both files
    assert config["trainer"]["precision"] == "bf16-mixed"  # the second file
    assert config["trainer"]["log_every_n_steps"] == 2  # the first
    shape = config["model"]["init_args"]["config"]
    assert shape["n_classes"] is None
    assert (shape["d_model"], shape["d_ff"], shape["n_layers"]) == (16, 99, 3)
