"""Model families: what each one contributes to the package, and the list of all families.

A family is a folder of `fourfold.models`, whose `family.py` declares a `Family`. Names in the
declaration are import paths ("module:Class"), so that a declaration is read without torch and
only the parts that are used are imported.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules, resolve_name
from typing import Any, Literal

# Names of `fourfold.models` and `fourfold.tasks` that belong to no family.
SHARED = {
    "models": {
        "Model": "fourfold.layers.base_model",
        "create": "fourfold.models.registry",
        "list_models": "fourfold.models.registry",
    },
    "tasks": {"Task": "fourfold.training.task", "load_task": "fourfold.training.loading"},
}
# Sizes that several families have.
BASE = {"d_model": 768, "n_layers": 12, "n_heads": 12, "d_ff": 3072}
LARGE = {"d_model": 1024, "n_layers": 24, "n_heads": 16, "d_ff": 4096}
_REGISTERED: list["Family"] = []


@dataclass(frozen=True)
class Family:
    """Declaration of a model family.

    Args:
        name: Name of the family, such as "vit".
        models: Modules of the classes of models and configs, by class name.
        tasks: Modules of the tasks, by class name.
        sizes: Published models by name: the name of the model class, and the fields of its config
            that differ from the defaults.
        architectures: Modules that describe classes of transformers in a tuple `ARCHITECTURES`, by
            the `model_type` in config.json.
        formats: Modules that read the checkpoints of other libraries than transformers, with a
            function `read_checkpoint(content, settings, dtype)` that returns None for other files.
        token_templates: Special tokens around a text and around a pair of texts in transformers,
            by name of the model class; see `fourfold.hub.preprocessing.write_tokenizer`.
        graphs: Functions ("module:function") that build the graphs of `fourfold export --format
            onnx`, by name of the model class.
        views: Classes ("module:Class") that show a model on the page of `fourfold look`, by name
            of the model class.
    """

    name: str
    models: Mapping[str, str]
    tasks: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)
    architectures: Mapping[str, str] = field(default_factory=dict)
    formats: tuple[str, ...] = ()
    token_templates: Mapping[str, tuple[str, str | None]] = field(default_factory=dict)
    graphs: Mapping[str, str] = field(default_factory=dict)
    views: Mapping[str, str] = field(default_factory=dict)


def with_configs(package: str, models: Mapping[str, str]) -> dict[str, str]:
    """Return the modules of models and of their configs, such as ViT and ViTConfig, by class name.

    `models` has the name of the module in `package` by the name of the model.
    """
    pairs = ((name + end, module) for name, module in models.items() for end in ("", "Config"))
    return {name: f"{package}.{module}" for name, module in pairs}


@cache
def _packaged() -> tuple[Family, ...]:
    package = import_module("fourfold.models")
    folders = sorted(found.name for found in iter_modules(package.__path__) if found.ispkg)
    own = [import_module(f"fourfold.models.{name}.family").FAMILY for name in folders]
    return (*own, *(entry.load() for entry in entry_points(group="fourfold.families")))


def families() -> Iterator[Family]:
    """Iterate over the families of fourfold, of installed packages and of `register`."""
    yield from (*_packaged(), *_REGISTERED)


def register(family: Family) -> None:
    """Add a family of your own, so that `create`, the shell commands and `look` know its models.

    An installed package declares its family by an entry point in the group "fourfold.families",
    such as `mypkg.family:FAMILY`, whose module must not import `fourfold.models`.
    """
    _REGISTERED[:] = [*(known for known in _REGISTERED if known.name != family.name), family]


def members(section: Literal["models", "tasks"]) -> dict[str, str]:
    """Return the modules of all classes in a section of the declarations, by class name."""
    found = dict(SHARED[section])
    for family in families():  # the first declaration of a name counts, so none can be replaced
        found = {**getattr(family, section), **found}
    return found


def import_member(section: Literal["models", "tasks"], name: str) -> Any:
    """Import a class of a section of the declarations.

    Raises:
        AttributeError: No family has a class of this name.
    """
    if name.startswith("__") or name not in (found := members(section)):
        raise AttributeError(f"module 'fourfold.{section}' has no attribute {name!r}")
    return getattr(import_module(found[name]), name)


def lookup(table: str, model: object) -> Any:
    """Return the entry of a model's class, or of its nearest parent, in a table of the families.

    Args:
        table: Name of a field of `Family`, such as "views".
        model: The model.

    Returns:
        The entry, and for an import path the imported object; None if no family has an entry.
    """
    tables = [getattr(family, table) for family in families()]
    names = (cls.__name__ for cls in type(model).__mro__)
    entry = next((entries[name] for name in names for entries in tables if name in entries), None)
    return resolve_name(entry) if isinstance(entry, str) else entry
