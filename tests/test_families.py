"""Declarations of the families: complete, correct, and open to a family of the user."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch

import fourfold
from fourfold import families
from fourfold.explorer.document import Settings, make_view
from fourfold.families import Family, import_member, members
from fourfold.layers.base_model import Model
from fourfold.models.registry import create_config
from fourfold.training.task import Task

FOLDERS = sorted((Path(fourfold.__file__).parent / "models").glob("*/family.py"))


@pytest.fixture
def registered() -> Iterator[Family]:
    mine = Family(
        name="mine",
        models={"CausalLM": "fourfold.models.causal_lm.model"},
        sizes={"mine-small": ("CausalLM", {"d_model": 8, "n_layers": 1, "n_heads": 2})},
    )
    families.register(mine)
    yield mine
    families._REGISTERED.remove(mine)


def test_each_folder_is_a_family() -> None:
    assert FOLDERS
    assert sorted(f.name for f in families.families()) == [f.parent.name for f in FOLDERS]


def test_every_class_of_a_family_is_declared() -> None:
    """Models with a config of their name and tasks with a model, found in the source files."""
    found = set()
    for file in sorted(FOLDERS[0].parent.parent.glob("*/*.py")):
        path = f"fourfold.models.{file.parent.name}.{file.stem}"
        names = {n.name for n in ast.parse(file.read_text()).body if isinstance(n, ast.ClassDef)}
        for cls in (getattr(import_module(path), name) for name in names if name[0] != "_"):
            if issubclass(cls, Model) and f"{cls.__name__}Config" in names:
                found |= {("models", cls.__name__, path), ("models", f"{cls.__name__}Config", path)}
            if issubclass(cls, Task) and hasattr(cls, "model_class"):
                found.add(("tasks", cls.__name__, path))
    assert len(found) > 50
    assert not {x for x in found if members(x[0]).get(x[1]) != x[2]}


def test_every_declared_name_exists() -> None:
    for family in families.families():
        for section in ("models", "tasks"):
            for name in getattr(family, section):
                assert import_member(section, name).__name__ == name
        for name, (class_name, _) in family.sizes.items():
            assert class_name in family.models
            assert type(create_config(name)).__name__ == f"{class_name}Config"
        for model_type, module in family.architectures.items():
            found = import_module(module).ARCHITECTURES
            assert model_type in {architecture.model_type for architecture in found}
        assert all(callable(resolve_name(path)) for path in family.views.values())


def test_declarations_import_neither_torch_nor_lightning() -> None:
    code = (
        "import sys; from fourfold.families import families; list(families());"
        " print(sorted({'torch', 'lightning', 'transformers'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "[]\n", result.stderr


def test_registered_family_is_known_everywhere(registered: Family) -> None:
    assert "mine-small" in fourfold.list_models()
    model = fourfold.create("mine-small", vocab_size=11)
    assert model(torch.tensor([[1, 2, 3]])).shape == (1, 3, 11)
    families.register(registered)  # again, for example in a notebook
    assert fourfold.list_models("mine*") == ["mine-small"]


def test_view_is_that_of_the_nearest_parent() -> None:
    class Mine(type(fourfold.create("gpt2", n_layers=1, vocab_size=8))):  # type: ignore[misc]
        pass

    view = make_view(Mine(create_config("gpt2", n_layers=1, vocab_size=8)).eval(), Settings())
    assert type(view).__name__ == "CausalView"


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = fourfold.models.Nothing


def test_a_fit_loads_its_own_family_only(tmp_path: Path) -> None:
    """The limit is the measure of the layout; a module that training does not use loads later."""
    options = ["fit", "--config=gpt2/tiny", f"--run_dir={tmp_path}/r", "--trainer.max_steps=1"]
    code = (
        f"import sys; from fourfold.cli import main; main({options});"
        " print('LOADED', *(x for x in sys.modules if x.split('.')[0] == 'fourfold'))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    loaded = result.stdout.rpartition("LOADED")[2].split()
    used = {x.split(".")[2] for x in loaded if x.endswith((".model", ".task")) and ".models." in x}
    assert used == {"causal_lm"}, result.stderr
    assert not [x for x in loaded if x.startswith(("fourfold.explorer", "fourfold.reproduce"))]
    assert len(loaded) <= 160
