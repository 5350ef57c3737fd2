"""Config files and options of a command line: lookup, hashes, and file and line of errors."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import yaml

from fourfold.commands.packaged_recipes import find_recipe
from fourfold.core.precision import AUTO
from fourfold.errors import InputError

# The loader of jsonargparse, which rejects some escape sequences that SafeLoader accepts.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def expand_arguments(arguments: Iterable[str], *, evaluates: bool = False) -> list[str]:
    """Normalize the spelling of command-line arguments.

    `-c` becomes `--config`, dashes in option names become underscores, and names of packaged
    recipes become paths.

    Args:
        arguments: Arguments of a command that reads configs.
        evaluates: True for commands that evaluate an existing run, False for `fit`.

    Returns:
        The normalized arguments. If they have `--run_dir DIR` and no `--config`, then
        `--config DIR/config.yaml` is added at the beginning. If `evaluates` is False, this option
        is added only if the file exists and neither `--model` nor `--data` is given.

    Raises:
        InputError: A recipe is unknown.
    """
    expanded: list[str] = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            name = "--" + name[2:].replace("-", "_")
        elif name == "-c":
            name = "--config"
        if expanded[-1:] == ["--config"]:
            expanded.append(_recipe_path(argument))
        elif name == "--config" and equals:
            expanded += [name, _recipe_path(value)]
        else:
            expanded.append(name + equals + value)
    given = dict(options(expanded))
    if "run_dir" not in given or "config" in given:
        return expanded
    config = Path(given["run_dir"], "config.yaml")
    if not evaluates and (not given.keys().isdisjoint(("model", "data")) or not config.is_file()):
        return expanded
    return ["--config", str(config), *expanded]


def _recipe_path(value: str) -> str:
    return value if _is_inline(value) else str(find_recipe(value))


def _is_inline(config: str) -> bool:
    """Return True if a value of `--config` is YAML text instead of the path of a file."""
    return config.lstrip().startswith("{")


def options(arguments: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each option of a command line, such as ("run_dir", "DIR")."""
    for number, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            yield name[2:], value if equals else "".join(arguments[number + 1 : number + 2])


def config_files(arguments: list[str]) -> list[Path]:
    """Return the paths of the config files that the `--config` options of a command line name."""
    values = [value for name, value in options(arguments) if name == "config"]
    return [Path(value) for value in values if value and not _is_inline(value)]


def fingerprints(arguments: list[str]) -> dict[str, str]:
    """Return a dict from the path of each config file of a command line to its SHA-256 hash.

    Only keys and values are hashed. The precision "auto" is left out, because it describes the
    processor and not the recipe.

    Raises:
        InputError: A file is missing or is not YAML.
    """
    hashes = {}
    for file in config_files(arguments):
        read_tree(file)  # reports errors with file and line
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        trainer = content.get("trainer") if isinstance(content, dict) else None
        if isinstance(trainer, dict) and trainer.get("precision") == AUTO:
            del trainer["precision"]
        text = json.dumps(content, sort_keys=True, default=str)
        hashes[str(file)] = hashlib.sha256(text.encode()).hexdigest()
    return hashes


def check_unedited(before: Mapping[str, str], arguments: list[str]) -> None:
    """Raise InputError if a config file changed since `fingerprints(arguments)` was `before`."""
    for file, _ in fingerprints(arguments).items() - before.items():
        message = "the config has changed since this command started; restore it, or start again"
        raise InputError(f"{message} with another run directory", file=file)


def read_tree(file: Path) -> yaml.Node | None:
    """Parse a YAML file into nodes, which hold line numbers; return None for an empty file.

    Raises:
        InputError: The file cannot be read or is not YAML.
    """
    try:
        text = file.read_text(encoding="utf-8")
        node: yaml.Node | None = yaml.compose(text, LOADER)
    except (UnicodeDecodeError, OSError) as error:
        raise InputError(f"the config file cannot be read: {error}", file=file) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or error
        line = min(mark.line + 1, len(text.splitlines())) if mark else None
        raise InputError(f"invalid YAML: {problem}", file=file, line=line) from error
    return node


def entries(node: yaml.Node | None, above: str = "") -> Iterator[tuple[str, int, yaml.Node]]:
    """Yield the dotted key, line number and value of each key in a YAML mapping, at all levels.

    A level called init_args is left out of the dotted keys. `above` is their prefix.
    """
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if key.value == "init_args":
            yield from entries(value, above)
        else:
            is_scalar = isinstance(key, yaml.ScalarNode)
            name = f"{above}{key.value if is_scalar else 'a mapping or list'}"
            yield name, key.start_mark.line + 1, value
            yield from entries(value, f"{name}.")


def locate(error: InputError, arguments: list[str]) -> InputError:
    """Add the whole name of an invalid option to an error, and its config file and line, if any.

    An option of the command line has no file. The error is returned unchanged if its option is
    neither there nor in a config file, or if several options have that last name.

    Args:
        error: Error with the name of the option: the whole dotted key, or its last name if a
            constructor raised the error.
        arguments: Command-line arguments, among them the config files.
    """
    if error.option in (None, "trainer:") or error.file is not None:
        return error
    key = str(error.option).strip("-:")
    given = [name.replace("init_args.", "") for name, _ in options(arguments)]
    whole = {name for name in given if name.endswith(f".{key}")}
    if whole or any(f"{key}.".startswith(f"{name}.") for name in given):
        return InputError(error.message, option=whole.pop()) if len(whole) == 1 else error
    for file in reversed(config_files(arguments)):
        keys = [(name, line) for name, line, _ in entries(read_tree(file))]
        found = {entry for entry in keys if entry[0] == key}
        found = found or {entry for entry in keys if entry[0].endswith(f".{key}")}
        if len(found) == 1:
            name, line = found.pop()
            option = str(error.option).replace(key, name)
            return InputError(error.message, option=option, file=file, line=line)
    return error
