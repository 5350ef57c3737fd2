"""Check of config keys against the JSON Schema of the configs, before torch is imported.

`scripts/config_schema.py` writes the schema from the parser of `fourfold fit`, and the first line
of each recipe names it to editors. A dotted key such as model.config.d_model leaves out the level
init_args of a YAML file.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from re import findall
from typing import Any

import yaml

from fourfold.commands.config_files import LOADER, config_files, entries, options, read_tree
from fourfold.commands.packaged_recipes import SUFFIXES, recipe_names, recipes_folder
from fourfold.core.validation import check_choice, check_range, suggestion
from fourfold.errors import InputError

CLASSES = ("model", "data")  # sections with a class_path
# Options that no config has, and the section of `fourfold tune`.
COMMAND_LINE = ("config", "help", "print_config", "tune")
# Parts of a key after which jsonargparse alone knows what is valid.
UNCHECKED = ("class_path", "init_args", "dict_kwargs", "help")
TEXT = "tag:yaml.org,2002:str"
# Types of JSON Schema that an option of the command line can be checked for.
TYPES = {"boolean": "true or false", "integer": "an integer", "number": "a number", "null": "null"}
TYPES_OF = {bool: "boolean", int: "integer", float: "number", type(None): "null"}
BOUNDS = [  # arguments of `check_range`, and their names in JSON Schema
    ("minimum", "minimum"),
    ("above", "exclusiveMinimum"),
    ("maximum", "maximum"),
    ("below", "exclusiveMaximum"),
]


@cache
def load_schema() -> dict[str, Any]:
    """Return the JSON Schema of the configs."""
    return json.loads((recipes_folder() / "schema.json").read_text("utf-8"))


def check_keys(arguments: list[str], required: Sequence[str] = ()) -> list[str]:
    """Check that the config files and options of a command line contain no misspelt key.

    Numbers and choices of the command line are checked, too; other values are left to jsonargparse.

    Arguments of a user's own class are not checked, since its module would have to be imported.

    Args:
        arguments: Command-line arguments that `expand_arguments` returned.
        required: Sections that must be given, such as model.

    Returns:
        Names or import paths of the classes of the model and the data.

    Raises:
        InputError: A key or a class of fourfold is not known, a key appears twice in a file, a
            section is not a mapping, a section is missing, or an option has a value of another type
            or out of range. For a config file, the error names file and line.
    """
    given: list[tuple[Path | None, str, int, Any]] = [
        (None, name.replace("init_args.", ""), 0, value) for name, value in options(arguments)
    ]
    for file in config_files(arguments):
        root = read_tree(file)
        if not isinstance(root, yaml.MappingNode):
            raise InputError("a config must be a mapping such as `model: ...`", file=file)
        given += [(file, *entry) for entry in entries(root)]
    sections = {name.partition(".")[0] for _, name, _, _ in given}
    if missing := [section for section in required if section not in sections]:
        raise InputError("must be given, as an option or in a --config", option=f"--{missing[0]}")
    paths = {
        section: {
            path
            for _, name, _, value in given
            if name.removesuffix(".class_path") == section
            and isinstance(path := getattr(value, "value", value), str)
            and not path.startswith("{")
        }
        for section in CLASSES
    }
    schema = _schema_for(paths)
    lines: dict[tuple[Path | None, str], int] = {}
    for origin, name, line, value in given:
        try:
            if (first := lines.setdefault((origin, name), line)) != line:
                raise InputError(f"must appear once, but line {first} has it, too", option=name)
            _check_key(name.removesuffix("+"), value, schema)
        except InputError as error:
            raise (error if origin is None else error.in_file(origin, line)) from error
    return sorted(set.union(*paths.values()))


def _schema_for(paths: dict[str, set[str]]) -> dict[str, Any]:
    """Return the schema for a command line whose sections have classes with the given paths.

    A section with a class of the user accepts every key.
    """
    definitions = load_schema()["definitions"]
    properties = {**load_schema()["properties"], **{name: {} for name in COMMAND_LINE}}
    foreign = [x for x in set.union(*paths.values()) if "." in x and not x.startswith("fourfold.")]
    for section, found in paths.items():
        choices = properties[section]["properties"]["class_path"]["anyOf"][0]["enum"]
        known = [_last(path) for path in choices]
        names = {path if path in foreign else _last(path) for path in found}
        of_classes = [definitions[name]["properties"] for name in names if name in known]
        merged = {key: node for each in of_classes for key, node in each.items()}
        # A class without a module may be in a module of the user that another class names.
        accepted = merged if len(of_classes) == len(names) else {}
        properties[section] = {"properties": accepted, "classes": [] if foreign else known}
    return {"properties": properties}


def _check_key(key: str, value: Any, schema: dict[str, Any]) -> None:
    """Check one key and, if it names a class or a section, its value."""
    node, above = schema, list[str]()
    for part in key.split("."):
        known = _properties(node)
        if not known or part in UNCHECKED:
            break
        if part not in known:
            raise unknown_key(".".join([*above, part]), list(_walk(schema)))
        above.append(part)
        node = _resolve(known[part])
    text = getattr(value, "value", value)
    classes = node.get("classes") if key.removesuffix(".class_path") in CLASSES else None
    if classes and isinstance(text, str) and text[:1] != "{" and _last(text) not in classes:
        message = f"must be a class of fourfold or of your module, got {text}"
        raise InputError(message + suggestion(_last(text), classes), option=above[0])
    is_section = node.get("type") == "object" and isinstance(value, yaml.Node)
    # A text may be the name of a file with the section.
    if is_section and not isinstance(value, yaml.MappingNode) and value.tag != TEXT:
        got = "a list" if isinstance(value, yaml.SequenceNode) else text or "null"
        raise InputError(f"must be a mapping, got {got}", option=key)
    if isinstance(value, str):
        _check_value(key, value, node)


def _check_value(key: str, text: str, node: dict[str, Any]) -> None:
    """Check the value of an option that takes a number, true, false, null or one of some names."""
    nodes = [_resolve(each) for each in node.get("anyOf", [node])]
    choices = [choice for each in nodes for choice in each.get("enum", ())]
    types = {name for each in nodes for name in findall(r"\w+", str(each.get("type", "")))}
    types -= {"string"} if any("pattern" in each for each in nodes) else set()
    is_known = all("type" in each or "enum" in each for each in nodes) and types <= TYPES.keys()
    if text[:2] in ("", "--") or not is_known:
        return
    value: Any = text
    with suppress(yaml.YAMLError):
        value = yaml.load(text, LOADER)
    with suppress(ValueError):  # YAML reads 1e-3 as a text
        value = float(value) if isinstance(value, str) else value
    kind = TYPES_OF.get(type(value), "string")
    if kind in types & {"integer", "number"} or (kind == "integer" and "number" in types):
        check_range(key, value, **{name: node[bound] for name, bound in BOUNDS if bound in node})
    elif kind not in types and value not in choices and text not in (*choices, "None"):
        allowed = [*dict.fromkeys(map(str, choices)), *(TYPES[name] for name in sorted(types))]
        if choices:
            check_choice(key, text, allowed)
        raise InputError(f"must be {' or '.join(allowed)}, got {text}", option=key)


def unknown_key(key: str, known: list[str]) -> InputError:
    """Return the error for a key that does not exist, with a suggestion of a similar known key."""
    if key.endswith(SUFFIXES) or key in recipe_names():
        return InputError(f"is not an option; did you mean --config {key}?", option=key)
    by_last = {_last(name): name for name in sorted(known, key=len, reverse=True)}
    close = get_close_matches(_last(key), by_last, n=5, cutoff=0.8)
    # Of several keys with a similar last name, one at the same level is preferred.
    here = [f"{key.rpartition('.')[0]}.{name}".lstrip(".") for name in close]
    found = [name for name in here if name in known] or [by_last[name] for name in close]
    hint = f"; did you mean {found[0]}?" if found else ""
    return InputError(f"is not a known key{hint}", option=key)


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _resolve(node: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in node:
        return node
    return _resolve(load_schema()["definitions"][node["$ref"].rpartition("/")[2]])


def _properties(node: dict[str, Any]) -> dict[str, Any]:
    """Return the properties of a schema, or of its alternatives together."""
    found = dict(node.get("properties", {}))
    for choice in node.get("anyOf", ()):
        found |= _properties(_resolve(choice))
    return found


def _walk(node: dict[str, Any], above: str = "") -> Iterator[str]:
    for name, inner in _properties(node).items():
        yield f"{above}{name}"
        yield from _walk(_resolve(inner), f"{above}{name}.")
