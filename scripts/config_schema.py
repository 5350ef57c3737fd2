"""Write configs/schema.json, the JSON Schema of the configs, from the parser of `fourfold fit`.

python scripts/config_schema.py            # write the file
python scripts/config_schema.py --check    # exit with code 1 if the file is out of date
"""

import argparse
import json
import math
import sys
import types
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass
from inspect import signature
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from lightning import LightningDataModule, Trainer

import fourfold.data
import fourfold.tasks
from fourfold.commands.recipe import make_parser
from fourfold.commands.train.config_schema import BOUNDS
from fourfold.commands.train.lightning_cli import TRAINER_DEFAULTS
from fourfold.commands.train.options import MINIMA
from fourfold.commands.train.parser import Parser, import_classes
from fourfold.core.validation import check_positive, check_range
from fourfold.training.task import Task

FILE = Path(__file__).resolve().parents[1] / "configs" / "schema.json"
NUMBER = r"^[-+]?(\.?[0-9][0-9._]*([eE][-+]?[0-9]+)?|inf|nan)$"
SCALARS = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
SCALARS |= {list: "array", tuple: "array", dict: "object", set: "array"}
KEYWORDS = ("anyOf", "allOf", "then", "properties")  # of JSON Schema, which are no names of options
METHODS = ("fit", "validate", "test", "predict")
CLASS = {"type": ["string", "object", "null"]}  # a class path, perhaps with init_args
HEADER = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "config of fourfold fit, validate, test and predict",
    "description": "Written by scripts/config_schema.py; do not edit.",
}


def of_type(hint: Any) -> dict[str, Any]:
    """Return the schema of a value with a type annotation; an empty one if anything is accepted."""
    origin = get_origin(hint) or hint
    if origin in (Union, types.UnionType):
        choices = [of_type(member) for member in get_args(hint)]
        if {} in choices:
            return {}
        if all("type" in choice and choice.keys() <= {"type", "pattern"} for choice in choices):
            names = {name for choice in choices for name in as_list(choice["type"])}
            takes_text = any("string" in x["type"] and "pattern" not in x for x in choices)
            pattern = {"pattern": NUMBER} if "number" in names and not takes_text else {}
            return {"type": sorted(names) if len(names) > 1 else names.pop(), **pattern}
        return {"anyOf": choices}
    if origin is Literal:
        return {"enum": list(get_args(hint))}
    if is_dataclass(origin):
        return properties_of(origin)
    # YAML writes 1e-3 as a text, and jsonargparse reads it as a number.
    if origin is float:
        return {"type": ["number", "string"], "pattern": NUMBER}
    return {"type": SCALARS[origin]} if origin in SCALARS else {}


def as_list(value: Any) -> list[Any]:
    """Return a list unchanged, and any other value as a list of one item."""
    return value if isinstance(value, list) else [value]


def properties_of(cls: type[Any]) -> dict[str, Any]:
    """Return the schema of the arguments of a class."""
    parser = Parser()
    parser.add_class_arguments(cls, "options", fail_untyped=False, sub_configs=True)
    found: dict[str, Any] = tree(parser)["properties"].get("options", {"properties": {}})
    add_bounds(found["properties"], cls)
    return {"type": "object", **found}


def add_bounds(properties: dict[str, Any], cls: type[Any]) -> None:
    """Add the bounds that the constructor of a class checks, unless another argument changes them.

    An argument that is None is not checked, so each argument in turn has other values instead.
    """
    parameters = signature(cls).parameters
    defaults = {name: p.default for name, p in parameters.items()}
    bounds = checked_bounds(cls, {})
    for name, value in defaults.items():
        hint = parameters[name].annotation
        choices = get_args(hint) if get_origin(hint) is Literal else ()
        if is_dataclass(value) and "properties" in properties.get(name, {}):
            add_bounds(properties[name]["properties"], type(value))
        for changed in (0, 1, 2, *choices):
            for key, found in checked_bounds(cls, {name: changed}).items():
                bounds[key] = found if bounds.get(key, found) == found else {}
    for name, found in bounds.items():
        if name in defaults and "properties" not in properties.get(name, {"properties": {}}):
            properties[name] |= found


def checked_bounds(cls: type[Any], arguments: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the bounds with which a constructor calls `check_range` and `check_positive`."""
    found: dict[str, dict[str, float]] = {}

    def trace(frame: Any, event: str, _: Any) -> None:
        given = frame.f_locals
        if event == "call" and frame.f_code is check_range.__code__:
            limits = {bound: given[name] for name, bound in BOUNDS if given[name] is not None}
            limits = {bound: limit for bound, limit in limits.items() if abs(limit) < math.inf}
        elif event == "call" and frame.f_code is check_positive.__code__:
            limits = {"minimum": 1}
        else:
            return
        key = given["name"].rpartition(".")[2]
        found[key] = limits if found.get(key, limits) == limits else {}

    sys.setprofile(trace)
    try:
        cls(**arguments)
    except Exception:  # the other checks of the constructor do not matter
        pass
    finally:
        sys.setprofile(None)
    return found


def tree(parser: Parser) -> dict[str, Any]:
    """Return the schema of all options of a parser, nested by the dots of their names."""
    root: dict[str, Any] = {}
    for name, action in options(parser):
        node = root
        *above, last = name.split(".")
        for part in above:
            node = node.setdefault("properties", {}).setdefault(part, {"type": "object"})
            node["additionalProperties"] = False
        hint = getattr(action, "_typehint", None)
        leaf = (
            of_type(hint) if hint is not None else {"type": "boolean"} if action.nargs == 0 else {}
        )
        help_text = " ".join((action.help or "").replace("%%", "%").split())
        default = asdict(action.default) if is_dataclass(action.default) else action.default
        if help_text and help_text != "==SUPPRESS==":
            leaf = {"description": help_text, **leaf}
        if isinstance(default, bool | int | float | str | None) and default != "==SUPPRESS==":
            leaf["default"] = default
        node.setdefault("properties", {})[last] = leaf
    return root


def options(parser: Parser) -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the action of each option that a config may have."""
    actions = [x for x in parser._actions if not x.dest.endswith(".help") and x.option_strings]
    for action in actions:
        is_group = any(other.dest.startswith(f"{action.dest}.") for other in actions)
        if action.dest not in ("help", "config", "print_config") and not is_group:
            yield action.dest, action


def classes(package: Any, base: type[Any]) -> dict[str, type[Any]]:
    """Return the public classes of a package that are derived from a base class, by name."""
    names = sorted({*dir(package), *getattr(package, "__all__", ())})
    found = {name: getattr(package, name, None) for name in names}
    return {
        name: cls
        for name, cls in found.items()
        if isinstance(cls, type) and issubclass(cls, base) and cls is not base
    }


def section(package: str, names: list[str]) -> dict[str, Any]:
    """Return the schema of a section with a class_path, whose init_args are those of the class."""
    paths = [f"fourfold.{package}.{name}" for name in names]
    return {
        "type": ["string", "object"],
        "properties": {
            "class_path": {"anyOf": [{"enum": paths}, {"type": "string"}]},
            "init_args": {"type": "object"},
            "dict_kwargs": {"type": "object"},
        },
        "additionalProperties": False,
        "allOf": [
            {
                "if": {
                    "properties": {"class_path": {"pattern": rf"^(fourfold\.(.+\.)?)?{name}$"}},
                    "required": ["class_path"],
                },
                "then": {"properties": {"init_args": {"$ref": f"#/definitions/{name}"}}},
            }
            for name in names
        ],
    }


def share(node: Any, definitions: dict[str, Any]) -> Any:
    """Replace objects that occur several times by references to `definitions`, in a copy."""
    counts = Counter(json.dumps(x, sort_keys=True) for x in objects(node) if "properties" in x)

    def replace(value: Any, name: str = "") -> Any:
        if isinstance(value, list):
            return [replace(inner, name) for inner in value]
        if not isinstance(value, dict):
            return value
        text = json.dumps(value, sort_keys=True)
        copy = {k: replace(x, name if k in KEYWORDS else k) for k, x in value.items()}
        if counts[text] < 2:
            return copy
        same = [key for key, content in definitions.items() if content == copy]
        key = same[0] if same else name
        while not same and key in definitions:
            key += "_"
        definitions[key] = copy
        return {"$ref": f"#/definitions/{key}"}

    return replace(node)


def objects(node: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects in a JSON value."""
    if isinstance(node, dict):
        yield node
    for inner in (
        node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    ):
        yield from objects(inner)


def make_schema() -> dict[str, Any]:
    """Return the JSON Schema of the configs of `fourfold fit`."""
    import_classes()
    sections = {"model": ("tasks", Task), "data": ("data", LightningDataModule)}
    packages = {"tasks": fourfold.tasks, "data": fourfold.data}
    parser = make_parser("fourfold fit")
    parser.set_defaults({f"trainer.{name}": value for name, value in TRAINER_DEFAULTS.items()})
    for method in METHODS:
        skip = {"model", "datamodule", "dataloaders", "train_dataloaders", "val_dataloaders"}
        skip |= {"ckpt_path", "weights_only"} | ({"verbose"} if method == "test" else set())
        parser.add_method_arguments(Trainer, method, skip=skip)
    root = tree(parser)
    for name, minimum in MINIMA.items():
        node = root
        for part in name.split("."):
            node = node["properties"][part]
        node["minimum"] = minimum
    root["properties"] |= {"optimizer": CLASS, "lr_scheduler": CLASS}
    own: dict[str, Any] = {}
    for name, (package, base) in sections.items():
        found = classes(packages[package], base)
        own |= {key: properties_of(cls) for key, cls in found.items()}
        root["properties"][name] = section(package, list(found))
    definitions: dict[str, Any] = {}
    shared = share({"root": root, "own": own}, definitions)
    properties = dict(sorted(shared["root"]["properties"].items()))
    return {
        **HEADER,
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "definitions": dict(sorted({**definitions, **shared["own"]}.items())),
    }


def main() -> int:
    """Write the schema, or check that the committed file is up to date."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="compare the file instead of writing")
    text = json.dumps(make_schema(), indent=1) + "\n"
    if parser.parse_args().check:
        return int(text != FILE.read_text(encoding="utf-8"))
    FILE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
