"""The API reference has an entry for every name that a user imports."""

import ast
import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest

from fourfold.core.config import ModelConfig
from fourfold.models import Model

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "fourfold"
DIRECTIVE = re.compile(
    r"^\.\. (currentmodule|automodule|autoclass|autofunction|py:data):: (\S+)", re.MULTILINE
)
EXPORTING = ("", "data", "edits", "generation", "learn", "metrics", "models", "tasks")
# Packages and modules whose modules a user imports by their own names.
BY_MODULE = [
    "callbacks",
    "core",
    "errors",
    "loggers",
    "losses",
    "layers/init",
    "layers/patch_embedding",
    "layers/positions",
    "layers/token_embedding",
    "layers/image_positions",
    "optim",
    "schedules",
    "tokenization",
]
# Checks of arguments, which fourfold itself uses.
# Helpers of the core and of the throughput callback.
WITHOUT_ENTRY = {"fourfold.core.validation", "fourfold.callbacks.monitoring.utilization"}

# Readers and writers of files, which docs/python.md shows.
FILES = {"fourfold.load", "fourfold.save"}


def entries() -> tuple[set[str], set[str]]:
    """Return the modules of the reference, and the full names of its other entries."""
    modules, names = set(), set()
    for page in (ROOT / "docs" / "api").glob("*.rst"):
        current = ""
        for kind, name in DIRECTIVE.findall(page.read_text(encoding="utf-8")):
            if kind == "currentmodule":
                current = name
            elif kind == "automodule":
                modules.add(name)
            else:
                names.add(f"{current}.{name}")
    return modules, names


def exported(package: str) -> set[str]:
    """Return the names in `__all__` and those of the form `import X as X`."""
    module = importlib.import_module(package)
    names = set(getattr(module, "__all__", ()))
    file = Path(str(module.__file__))
    stub = file.with_suffix(".pyi")
    text = (stub if stub.exists() else file).read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            names |= {alias.name for alias in node.names if alias.name == alias.asname}
    return names


def value(name: str) -> object:
    package, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(package), attribute)


@pytest.mark.parametrize("name", EXPORTING)
def test_every_exported_name_has_an_entry(name: str) -> None:
    package = f"fourfold.{name}".rstrip(".")
    _, names = entries()
    described = [value(entry) for entry in names]  # an object may have two names and one entry
    exports = exported(package)
    assert exports
    assert not {
        export
        for export in exports
        if f"{package}.{export}" not in names
        and not any(value(f"{package}.{export}") is one for one in described)
    }


def test_every_package_with_exports_is_in_the_list() -> None:
    packages = {
        ".".join(file.parent.relative_to(PACKAGE).parts) for file in PACKAGE.rglob("__init__.py")
    }
    assert {name for name in packages if exported(f"fourfold.{name}".rstrip("."))} == set(EXPORTING)


def test_every_module_of_the_other_packages_has_an_entry() -> None:
    files = [file for name in BY_MODULE for file in (PACKAGE / name).rglob("[!_]*.py")]
    files += [PACKAGE / f"{name}.py" for name in BY_MODULE if (PACKAGE / f"{name}.py").exists()]
    modules = {".".join(file.relative_to(ROOT / "src").with_suffix("").parts) for file in files}
    assert modules - WITHOUT_ENTRY == entries()[0]


def described() -> dict[str, object]:
    """Return the objects with an entry, by their full names."""
    modules, names = entries()
    found = {name: value(name) for name in names if not name.endswith("__")}
    for module in map(importlib.import_module, modules):
        members = [(name, member) for name, member in vars(module).items() if name[0] != "_"]
        found |= {
            f"{module.__name__}.{name}": member
            for name, member in members
            if inspect.isfunction(member) or inspect.isclass(member)
            if member.__module__ == module.__name__
        }
    return found


def is_model(member: object) -> bool:
    return inspect.isclass(member) and issubclass(member, Model | ModelConfig)


@pytest.mark.parametrize("page", ["fourfold", "generation"])  # with entries of data
def test_the_examples_of_a_page_run(page: str) -> None:
    file = ROOT / "docs" / "api" / f"{page}.rst"
    result = doctest.testfile(str(file), module_relative=False)
    assert result.attempted > 0
    assert result.failed == 0


def test_every_model_names_a_paper() -> None:
    models = {name: member for name, member in described().items() if is_model(member)}
    assert len(models) > 20
    assert not {
        name
        for name, member in models.items()
        if member not in (Model, ModelConfig)
        and not re.search(r"(19|20)\d\d", inspect.getdoc(member) or "")
    }
