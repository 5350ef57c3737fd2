"""Config files named on a command line: lookup, YAML checks with file and line, fingerprints."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from fourfold.commands.packaged_recipes import find_recipe
from fourfold.errors import InputError


def expand_arguments(arguments: Iterable[str], *, evaluates: bool = False) -> list[str]:
    """Return the arguments in the spelling that the parsers know.

    Dashes in option names become underscores and names of packaged recipes become paths.

    Args:
        arguments: Arguments of a command that reads configs.
        evaluates: Use RUN_DIR/config.yaml if `--run_dir` is given without `--config`.

    Raises:
        InputError: A recipe is unknown, or the run directory contains no config.
    """
    expanded: list[str] = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            name = "--" + name[2:].replace("-", "_")
        if expanded and expanded[-1] in ("--config", "-c"):
            expanded.append(_recipe_path(argument))
        elif name in ("--config", "-c") and equals:
            expanded += [name, _recipe_path(value)]
        else:
            expanded.append(name + equals + value)
    run_dir = _value_of("--run_dir", expanded)
    if not evaluates or run_dir is None or any(_configs(expanded)):
        return expanded
    config = Path(run_dir) / "config.yaml"
    if not config.is_file():
        raise InputError(
            f"must contain config.yaml unless --config is given, got {run_dir}", option="--run_dir"
        )
    return ["--config", str(config), *expanded]


def _recipe_path(value: str) -> str:
    return value if _is_inline(value) else str(find_recipe(value))


def _is_inline(config: str) -> bool:
    """Return True for YAML that is written on the command line in place of a file name."""
    return config.lstrip().startswith("{")


def _value_of(option: str, arguments: list[str]) -> str | None:
    """Return the last value of an option; None if it is not given."""
    values = [value for name, value in _options(arguments) if f"--{name}" == option]
    return values[-1] if values else None


def config_files(arguments: list[str]) -> list[Path]:
    """Return the files that `--config` names, without configs written on the command line."""
    return [Path(value) for value in _configs(arguments) if not _is_inline(value)]


def _configs(arguments: list[str]) -> Iterator[str]:
    """Yield the value of each `--config`."""
    for number, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name in ("-c", "--config"):
            value = value if equals else "".join(arguments[number + 1 : number + 2])
            if value:
                yield value


def fingerprints(arguments: list[str]) -> dict[str, str]:
    """Return the SHA-256 of keys and values of each config file; comments do not count.

    Raises:
        InputError: A file is missing or is not YAML.
    """
    hashes = {}
    for file in config_files(arguments):
        read_tree(file)  # reports errors with file and line
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        text = json.dumps(content, sort_keys=True, default=str)
        hashes[str(file)] = hashlib.sha256(text.encode()).hexdigest()
    return hashes


def check_unedited(before: Mapping[str, str], arguments: list[str]) -> None:
    """Check that config files have kept their content since `before` was computed.

    Args:
        before: Earlier value of `fingerprints(arguments)`.
        arguments: The command line.

    Raises:
        InputError: A file has changed.
    """
    for file, fingerprint in fingerprints(arguments).items():
        if before.get(file) != fingerprint:
            raise InputError(
                "the config has changed since this command started; restore it, or start again"
                " with another run directory",
                file=file,
            )


def check_files(files: Iterable[Path], keys: Iterable[str]) -> None:
    """Check that each file is a YAML mapping whose top-level keys are among `keys`.

    Raises:
        InputError: The error has file and line.
    """
    keys = list(keys)
    for file in files:
        root = read_tree(file)
        if not isinstance(root, yaml.MappingNode):
            raise InputError("a config must be a mapping such as `model: ...`", file=file)
        for name, line, _ in _children(root):
            # jsonargparse ignores an unknown key whose value is empty.
            if name not in keys:
                raise unknown_key(name, keys).in_file(file, line)
        _check_unique_keys(file, root)


def unknown_key(key: str, known: Iterable[str]) -> InputError:
    """Return the error of a key that does not exist, with the closest known one.

    Args:
        key: Dotted name of the key.
        known: Dotted names of existing keys.
    """
    known = list(known)
    leaf = key.rsplit(".", 1)[-1]
    close = get_close_matches(key, known, n=1, cutoff=0.75)
    close += [name for name in known if name.rsplit(".", 1)[-1] == leaf]
    hint = f"; did you mean {close[0]}?" if close else ""
    return InputError(f"is not a known key{hint}", option=key)


def _check_unique_keys(file: Path, node: yaml.Node) -> None:
    """Check that no key appears twice; PyYAML would take the last one."""
    for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
        if not isinstance(key, yaml.ScalarNode):
            raise InputError("a key must be a string", file=file, line=key.start_mark.line + 1)
    first: dict[str, int] = {}
    for name, line, child in _children(node):
        if name in first:
            raise InputError(
                f"must appear once, but line {first[name]} has it, too",
                option=name,
                file=file,
                line=line,
            )
        first[name] = line
        _check_unique_keys(file, child)


def read_tree(file: Path) -> yaml.Node | None:
    """Parse a YAML file into nodes that know their lines.

    Raises:
        InputError: The file does not exist, is not UTF-8 or is not YAML.
    """
    try:
        node: yaml.Node | None = yaml.compose(file.read_text(encoding="utf-8"), yaml.SafeLoader)
        return node
    except FileNotFoundError as error:
        raise InputError("the config file does not exist", file=file) from error
    except IsADirectoryError as error:
        hint = f"; use {file / 'config.yaml'}" if (file / "config.yaml").is_file() else ""
        raise InputError(f"a config must be a file, not a directory{hint}", file=file) from error
    except (UnicodeDecodeError, OSError) as error:
        raise InputError(f"the config file cannot be read: {error}", file=file) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else None
        raise InputError(f"invalid YAML: {error.problem}", file=file, line=line) from error
    except yaml.YAMLError as error:
        raise InputError(f"invalid YAML: {error}", file=file) from error


def locate(error: InputError, arguments: list[str]) -> InputError:
    """Return an error of the parser with file and line, if a config file sets its option."""
    if error.option is None or error.file is not None:
        return error
    if _on_command_line(error.option, arguments):
        return error
    for file in reversed(config_files(arguments)):
        line = _line_of(read_tree(file), _path(error.option))
        if line is not None:
            return error.in_file(file, line)
    return error


def leaves(file: Path) -> list[tuple[str, int, str]]:
    """Return dotted key, line and value of each key of a YAML file that holds a value.

    Raises:
        InputError: The file does not exist or is not YAML.
    """
    return [(".".join(path), line, value) for path, line, value in _scalars(read_tree(file))]


def _scalars(node: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int, str]]:
    for name, line, child in _children(node):
        path = above if name == "init_args" else (*above, name)
        if isinstance(child, yaml.SequenceNode):
            yield from ((path, line, str(item.value)) for item in child.value)
        elif isinstance(child, yaml.ScalarNode):
            yield path, line, str(child.value)
        else:
            yield from _scalars(child, path)


def is_given(key: str, arguments: list[str]) -> bool:
    """Return True if the command line or a config file sets `key` or a key inside it."""
    path = _path(key)
    files = config_files(arguments)
    inline = [yaml.compose(c, yaml.SafeLoader) for c in _configs(arguments) if _is_inline(c)]
    return (
        any(_line_of(read_tree(file), path, file.parent) for file in files)
        or any(_line_of(node, path, Path()) for node in inline)
        or any(_path(option)[: len(path)] == path for option, _ in _options(arguments))
        or _on_command_line(key, arguments)
    )


def _on_command_line(key: str, arguments: list[str]) -> bool:
    """Return True if an option of the command line is `key`, or has a value that contains it."""
    path = _path(key)
    for name, value in _options(arguments):
        option = _path(name)
        if option == path:
            return True
        if option == path[: len(option)]:
            node = yaml.compose(value, yaml.SafeLoader) if _is_inline(value) else None
            node = node or _nested_file(value, Path())
            if _line_of(node, path[len(option) :], Path()) is not None:
                return True
    return False


def _nested_file(value: str, folder: Path) -> yaml.Node | None:
    """Return the content of the config file that a value names, if it names one."""
    is_file = value.endswith((".yaml", ".yml", ".json")) and (folder / value).is_file()
    return read_tree(folder / value) if is_file else None


def _options(arguments: list[str]) -> Iterator[tuple[str, str]]:
    """Yield name and value of each option."""
    for number, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            yield name[2:], value if equals else "".join(arguments[number + 1 : number + 2])


def _path(key: str) -> list[str]:
    return [name for name in key.removeprefix("--").split(".") if name != "init_args"]


def _children(node: Any) -> Iterator[tuple[str, int, yaml.Node]]:
    """Yield name, line and value of each key of a mapping whose name is a scalar."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                yield str(key.value), key.start_mark.line + 1, value


def _line_of(node: yaml.Node | None, path: list[str], folder: Path | None = None) -> int | None:
    """Return the line of the key at `path`; a level `init_args` may be in between.

    With `folder`, the directory of the config, files that the config names are searched, too.
    """
    for name, line, child in _children(node):
        if folder is not None and isinstance(child, yaml.ScalarNode):
            child = _nested_file(str(child.value), folder) or child
        if name == "init_args":
            found = _line_of(child, path, folder)
        elif path and name == path[0]:
            found = line if len(path) == 1 else _line_of(child, path[1:], folder)
        else:
            continue
        if found is not None:
            return found
    return None
