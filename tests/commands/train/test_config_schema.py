"""The JSON Schema of the configs, and the check of keys against it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from fourfold.commands.config_files import expand_arguments
from fourfold.commands.packaged_recipes import recipe_names, recipes_folder
from fourfold.commands.train.config_schema import check_keys
from fourfold.errors import InputError

SCHEMA = json.loads((recipes_folder() / "schema.json").read_text())


def test_committed_schema_is_that_of_the_parser() -> None:
    """If not: python scripts/config_schema.py. Other tests define classes in this process."""
    script = Path(__file__).resolve().parents[3] / "scripts" / "config_schema.py"
    result = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_all_packaged_recipes_have_known_keys() -> None:
    for name in recipe_names():
        check_keys(expand_arguments(["--config", name]))


def test_schema_accepts_the_recipes_and_a_merged_config(
    run: Any, configs: dict[str, Path], tmp_path: Path
) -> None:
    """By the rules of JSON Schema itself, as an editor applies them."""
    validator = pytest.importorskip("jsonschema").Draft7Validator(SCHEMA)
    validator.check_schema(SCHEMA)
    files = sorted(recipes_folder().rglob("*.yaml"))
    contents = {file: yaml.safe_load(file.read_text()) for file in files}
    for name in ("lm", "vit", "mt"):
        printed = run("fit", "--config", configs[name], "--print_config").out
        contents[Path(name)] = yaml.safe_load(printed)
    for file, content in contents.items():
        assert [error.message for error in validator.iter_errors(content)] == [], file
    misspelt = contents[Path("lm")]
    misspelt["model"]["init_args"]["config"]["d_modl"] = 3
    assert any("d_modl" in error.message for error in validator.iter_errors(misspelt))


def test_misspelt_key_of_a_config_file_is_located(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("model:\n  class_path: Translation\n  init_args:\n    config: {d_modl: 3}\n")
    with pytest.raises(InputError) as error:
        check_keys(["--config", str(file)])
    hint = "model.config.d_modl is not a known key; did you mean model.config.d_model?"
    assert str(error.value) == f"{file}:4: {hint}"


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("model.nlayers", "model.config.n_layers"),
        ("lr", "model.optimizer.lr"),
        ("modle", "model"),
        ("trainer.max_epohcs", "trainer.max_epochs"),
    ],
)
def test_suggestion_is_the_closest_key_of_any_level(option: str, hint: str) -> None:
    with pytest.raises(InputError, match=rf"^{option} is not a known key; did you mean {hint}\?$"):
        check_keys(expand_arguments(["--config", "gpt2/tiny", f"--{option}=1"]))


def test_keys_of_the_classes_of_a_user_are_not_checked() -> None:
    own = ["--model", "mine.Task", "--model.own", "1", "--data", "Data", "--data.x=1"]
    assert check_keys([*own, "--trainer.callbacks.anything=1"]) == ["Data", "mine.Task"]
    with pytest.raises(InputError, match=r"^trainer.max_step is not .* trainer.max_steps\?$"):
        check_keys(["--model", "mine.Task", "--trainer.max_step=1"])


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("model.optimizer.lr=fast", "must be a number, got fast"),
        ("model.optimizer.lr=-1e-3", "must be above 0, got -0.001"),
        ("model.config.n_layers=0", "must be at least 1, got 0"),
        ("model.config.dropout=1", "must be at least 0 and below 1, got 1"),
        ("model.config.norm=layr", "must be one of layer, rms, got 'layr'; did you mean layer?"),
        ("resume=yes", "must be one of auto, must, never, got 'yes'"),
        ("trainer.max_epochs=soon", "must be an integer or null, got soon"),
        ("trainer.accumulate_grad_batches=0", "must be at least 1, got 0"),
        ("compile=maybe", "must be true or false, got maybe"),
    ],
)
def test_value_is_refused_without_torch(option: str, message: str) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "fourfold", "fit", "--config", "gpt2/tiny"]
    result = subprocess.run([*command, f"--{option}"], capture_output=True, text=True)
    assert result.returncode == 2
    name = option.partition("=")[0]
    assert f"fourfold: error: {name} {message}" in result.stderr
    assert "torch" not in {line.rpartition("| ")[2].strip() for line in result.stderr.splitlines()}


@pytest.mark.parametrize(
    "option",
    [
        *("model.optimizer.lr=1", "model.optimizer.lr=1e-3", "model.optimizer.lr=.5"),
        *("trainer.max_steps=-1", "trainer.max_epochs=null", "trainer.max_epochs=None"),
        *("trainer.precision=32", "trainer.precision=auto", "trainer.deterministic=warn"),
        *("trainer.fast_dev_run=true", "trainer.fast_dev_run=2", "trainer.limit_val_batches=0.5"),
        *("model.activation_checkpointing=2", "model.activation_checkpointing=block"),
        *("trainer.devices=auto", "trainer.devices=[0,1]", "trainer.logger=false", "run_dir=3"),
        *("model.config={d_model: 8}", "model.optimizer.betas=[0.9, 0.95]", "seed_everything=true"),
    ],
)
def test_valid_values_pass(option: str) -> None:
    check_keys(expand_arguments(["--config", "gpt2/tiny", f"--{option}"]))


def test_bounds_of_the_schema_do_not_depend_on_other_options() -> None:
    data = SCHEMA["definitions"]["SyntheticSequenceData"]["properties"]
    assert "maximum" not in data["length"]  # depends on `task`
    assert data["num_workers"]["minimum"] == 0
    context = SCHEMA["definitions"]["CausalTextData"]["properties"]["eval_context"]
    assert "exclusiveMaximum" not in context  # below `block_size`
