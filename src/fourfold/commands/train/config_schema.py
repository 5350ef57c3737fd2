"""Check of config keys against the JSON Schema of the configs, before torch is imported.

`scripts/config_schema.py` writes the schema from the parser of `fourfold fit`. Editors read it, too,
since the first line of each recipe names it. A dotted key such as model.config.d_model leaves out
the levels class_path and init_args of a YAML file.
"""

import json
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from fourfold.commands.packaged_recipes import SUFFIXES, recipe_names, recipes_folder
from fourfold.commands.train.config_files import config_files, entries, options, read_tree
from fourfold.errors import InputError

SECTIONS = ("model", "data")  # with a class_path
# Options of the command line that no config has.
COMMAND_LINE = ("config", "help", "print_config")
# Parts of a key after which jsonargparse alone knows what is valid.
UNCHECKED = ("class_path", "init_args", "dict_kwargs", "help")
STRING = "tag:yaml.org,2002:str"


@cache
def load_schema() -> dict[str, Any]:
    """Return the JSON Schema of the configs."""
    content: dict[str, Any] = json.loads((recipes_folder() / "schema.json").read_text("utf-8"))
    return content


def check_keys(arguments: list[str]) -> list[str]:
    """Check that the config files and options of a command line contain no misspelt key.

    Arguments of a user's own class are not checked, since its module would have to be imported.

    Args:
        arguments: Command-line arguments that `expand_arguments` returned.

    Returns:
        Names or import paths of the classes of the model and the data.

    Raises:
        InputError: A key or a class of fourfold is not known, a key appears twice in a file, or a
            section is not a mapping. For a config file, the error names file and line.
    """
    found: list[tuple[str, Path | None, int, Any]] = [
        (name.replace("init_args.", "").removesuffix("+"), None, 0, value)
        for name, value in options(arguments)
    ]
    for file in config_files(arguments):
        root = read_tree(file)
        if not isinstance(root, yaml.MappingNode):
            raise InputError("a config must be a mapping such as `model: ...`", file=file)
        found += [(name.removesuffix("+"), file, *entry) for name, *entry in entries(root)]
    classes: dict[str, set[str]] = {section: set() for section in SECTIONS}
    for name, _, _, value in found:
        section, path = name.removesuffix(".class_path"), getattr(value, "value", value)
        if section in classes and isinstance(path, str) and not path.startswith("{"):
            classes[section].add(path)
    schema, lines = _for_classes(classes), dict[Any, int]()
    for name, origin, line, value in found:
        try:
            if origin and (first := lines.setdefault((name, origin), line)) != line:
                raise InputError(f"must appear once, but line {first} has it, too", option=name)
            _check_key(name, value, schema)
            if name in [*SECTIONS, *(f"{section}.class_path" for section in SECTIONS)]:
                _check_class(name.split(".")[0], getattr(value, "value", value), classes)
        except InputError as error:
            raise (error if origin is None else error.in_file(origin, line)) from error
    return sorted(set.union(*classes.values()))


def _check_key(key: str, value: Any, schema: dict[str, Any]) -> None:
    known: dict[str, Any] = {**schema["properties"], **dict.fromkeys(COMMAND_LINE, {})}
    node: dict[str, Any] = schema
    above: list[str] = []
    for part in key.split("."):
        if not known or part in UNCHECKED:
            return
        if part not in known:
            siblings = [".".join([*above, name]) for name in known]
            raise unknown_key(".".join([*above, part]), siblings, list(_walk(schema)), key)
        above.append(part)
        node = _resolve(known[part])
        known = _properties(node)
    is_text = not isinstance(value, yaml.Node) or value.tag == STRING  # which may be a file name
    if node.get("type") == "object" and not is_text and not isinstance(value, yaml.MappingNode):
        raise InputError(f"must be a mapping, got {value.value or 'null'}", option=key)


def _check_class(section: str, path: Any, classes: dict[str, set[str]]) -> None:
    """Raise InputError if a class of fourfold does not exist.

    A name without a module may be that of a class in a module of the user that the config names.
    """
    has_foreign = any(_is_foreign(path) for paths in classes.values() for path in paths)
    is_unknown = not isinstance(path, str) or path not in classes[section] or _is_foreign(path)
    if is_unknown or (has_foreign and "." not in path):
        return
    names = [name.rpartition(".")[2] for name in _shipped(section)]
    if path.rpartition(".")[2] not in names:
        close = get_close_matches(path.rpartition(".")[2], names, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise InputError(f"must be a class of the section, got {path}{hint}", option=section)


def _is_foreign(path: str) -> bool:
    return "." in path and not path.startswith("fourfold.")


def _shipped(section: str) -> list[str]:
    """Return the import paths of the classes of fourfold for a section."""
    choices: list[str] = load_schema()["properties"][section]["properties"]["class_path"]["anyOf"][
        0
    ]["enum"]
    return choices


def _for_classes(classes: dict[str, set[str]]) -> dict[str, Any]:
    """Return the schema with the arguments of the given classes in the sections model and data.

    A section with an unknown class has no properties.
    """
    schema = load_schema()
    properties = dict(schema["properties"])
    for section, paths in classes.items():
        names = {name.rpartition(".")[2] for name in _shipped(section)}
        chosen = {path.rpartition(".")[2] for path in paths}
        merged: dict[str, Any] = {}
        if chosen <= names and not any(map(_is_foreign, paths)):
            for name in chosen:
                merged |= schema["definitions"][name]["properties"]
        properties[section] = {"properties": merged}
    return {"properties": properties}


def _resolve(node: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in node:
        return _resolve(load_schema()["definitions"][node["$ref"].rpartition("/")[2]])
    return node


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


def unknown_key(key: str, siblings: list[str], everywhere: list[str], whole: str) -> InputError:
    """Return the error for a key that does not exist, with a suggestion of a similar one.

    Args:
        key: Dotted name up to the part that does not exist, such as trainer.max_step.
        siblings: Dotted names of the keys at the same level.
        everywhere: Dotted names of the keys at all levels.
        whole: Dotted name of the given key.
    """
    if key.endswith(SUFFIXES) or key in recipe_names():
        return InputError(f"is not an option; did you mean --config {key}?", option=key)
    last = key.rpartition(".")[2]
    shortest_last = {name.rpartition(".")[2]: name for name in sorted(everywhere, key=len)[::-1]}
    close = [shortest_last[last]] if last in shortest_last else []
    close += get_close_matches(key, siblings, n=1, cutoff=0.75)
    # Otherwise a key whose last name has the same words, perhaps with others, or is similar.
    close += sorted((k for k in siblings if f"_{last}_" in f"_{k.rpartition('.')[2]}_"), key=len)
    close += [shortest_last[k] for k in get_close_matches(last, shortest_last, n=1, cutoff=0.8)]
    hint = f"; did you mean {close[0]}?" if close else ""
    return InputError(f"is not a known key{hint}", option=whole)
