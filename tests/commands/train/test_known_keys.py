"""Names of arguments in the source code, compared with the imported classes."""

import inspect
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from lightning import Trainer

import fourfold.data
import fourfold.tasks
from fourfold.commands.packaged_recipes import recipe_names
from fourfold.commands.train.config_files import expand_arguments
from fourfold.commands.train.known_keys import _trainer_arguments, arguments_of, check_keys
from fourfold.errors import InputError

TASKS = [getattr(fourfold.tasks, name) for name in dir(fourfold.tasks) if name != "load_task"]
DATA = [getattr(fourfold.data, name) for name in fourfold.data.__all__]


def constructor_arguments(cls: type) -> Iterator[str]:
    """Yield the arguments of a constructor, with those of its bases if it passes them on."""
    for base in cls.__mro__[:-1]:
        if "__init__" not in vars(base):
            continue
        parameters = inspect.signature(base.__init__).parameters  # type: ignore[misc]
        for name, parameter in list(parameters.items())[1:]:
            if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                yield name
        if not any(p.kind == p.VAR_KEYWORD for p in parameters.values()):
            return


@pytest.mark.parametrize("cls", [*TASKS[1:], *DATA], ids=lambda cls: cls.__name__)
def test_arguments_in_the_source_are_those_of_the_class(cls: type) -> None:
    assert arguments_of(cls.__name__).keys() == set(constructor_arguments(cls))
    if cls in TASKS:
        config = type(vars(cls)["config"])
        found = arguments_of(arguments_of(cls.__name__)["config"]).keys()
        assert found >= {field.name for field in fields(config)}


def test_trainer_arguments_in_the_source_are_those_of_the_trainer() -> None:
    assert _trainer_arguments("__init__").keys() == set(inspect.signature(Trainer).parameters)


def test_all_packaged_recipes_have_known_keys() -> None:
    for name in recipe_names():
        check_keys(expand_arguments(["--config", name]))


def test_misspelt_key_of_a_config_file_is_located(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("model:\n  class_path: Translation\n  init_args:\n    config: {d_modl: 3}\n")
    with pytest.raises(InputError) as error:
        check_keys(["--config", str(file)])
    hint = "model.config.d_modl is not a known key; did you mean model.config.d_model?"
    assert str(error.value) == f"{file}:4: {hint}"


def test_keys_of_the_classes_of_a_user_are_not_checked() -> None:
    check_keys(["--model", "mine.Task", "--model.own", "1", "--data", "mine.Data", "--data.x=1"])
    with pytest.raises(InputError, match=r"^trainer.max_step is not .* trainer.max_steps\?$"):
        check_keys(["--model", "mine.Task", "--trainer.max_step=1"])
