"""Config files looked at before they are parsed: to name file and line of what is wrong."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from fourfold.commands.parser import OptionError, unknown
from fourfold.core.errors import InputError


def config_files(arguments: list[str]) -> list[Path]:
    """The files that `--config` names; configs written out on the command line are left out."""
    return [Path(value) for value in _configs(arguments) if not value.lstrip().startswith("{")]


def _configs(arguments: list[str]) -> Iterator[str]:
    """What stands behind each `--config`."""
    for number, argument in enumerate(arguments):
        name, _, value = argument.partition("=")
        if name in ("-c", "--config"):
            value = value if "=" in argument else "".join(arguments[number + 1 : number + 2])
            if value:
                yield value


def fingerprints(arguments: list[str]) -> dict[str, str]:
    """By config file, SHA-256 of what it says: its keys and values, whatever its comments.

    Raises:
        InputError: One is missing, or not YAML.
    """
    found = {}
    for file in config_files(arguments):
        read_tree(file)  # for its sentence about what is wrong
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        text = json.dumps(content, sort_keys=True, default=str)
        found[str(file)] = hashlib.sha256(text.encode()).hexdigest()
    return found


def refuse_edited(before: Mapping[str, str], arguments: list[str]) -> None:
    """Make sure that config files still say what they did when their `fingerprints` were taken.

    Raises:
        InputError: Names the first that does not.
    """
    for file, now in fingerprints(arguments).items():
        if before.get(file) != now:
            raise InputError(
                f"{file} has changed since this command began: put it back, or start it again with"
                " another run directory"
            )


def check_files(files: Iterable[Path], keys: Iterable[str]) -> None:
    """Make sure that each is there, is YAML, and has no top-level key but `keys`.

    Raises:
        InputError: Names the file, the line and the key.
    """
    keys = list(keys)
    for file in files:
        root = read_tree(file)
        if root is None or not isinstance(root, yaml.MappingNode):
            raise InputError(f"{file}: a config must be a mapping such as `model: ...`")
        for name, line, _ in _children(root):
            # jsonargparse passes over an unknown key with nothing below it.
            if name not in keys:
                raise InputError(f"{file}, line {line}: {unknown(name, keys)}")
        _refuse_repeated(file, root)


def _refuse_repeated(file: Path, node: yaml.Node) -> None:
    """YAML forbids a key that stands twice, and PyYAML takes the last."""
    for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
        if not isinstance(key, yaml.ScalarNode):
            raise InputError(f"{file}, line {key.start_mark.line + 1}: a key must be a word")
    first: dict[str, int] = {}
    for name, line, below in _children(node):
        if name in first:
            raise InputError(f"{file}, line {line}: {name} stands already in line {first[name]}")
        first[name] = line
        scalar = below.value if isinstance(below, yaml.ScalarNode) else ""
        if re.search(r"[\ud800-\udfff]", scalar):
            raise InputError(f"{file}, line {line}: half of a surrogate pair, no character")
        _refuse_repeated(file, below)


def read_tree(file: Path) -> yaml.Node | None:
    """A YAML file as nodes that know their line.

    Raises:
        InputError: There is no such file, or it is not UTF-8, or not YAML.
    """
    try:
        node: yaml.Node | None = yaml.compose(file.read_text(encoding="utf-8"), yaml.SafeLoader)
        return node
    except FileNotFoundError as error:
        raise InputError(f"{file}: there is no such config file") from error
    except IsADirectoryError as error:
        inside = file / "config.yaml"
        meant = f"; give {inside}" if inside.is_file() else ""
        raise InputError(f"{file}: is a directory, not a config file{meant}") from error
    except (UnicodeDecodeError, OSError) as error:
        raise InputError(f"{file}: cannot be read as a text: {error}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise InputError(f"{file}{line}: not valid YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise InputError(f"{file}: not valid YAML: {error}") from error


def locate(error: OptionError, arguments: list[str]) -> InputError:
    """The error with file and line, if it is in a file that one of `arguments` names."""
    if _on_command_line(error.key, arguments):
        return error
    for file in reversed(config_files(arguments)):
        line = _line_of(read_tree(file), _path(error.key))
        if line is not None:
            return InputError(f"{file}, line {line}: {error}")
    return error


def locate_value(error: InputError, arguments: list[str]) -> InputError:
    """The error of a value that only its class could judge, with the file and line that hold it.

    Known by its words: they name a key and the value that stands there. A sentence that names a
    line already is about data, and one about an option of the command line about no file.
    """
    if isinstance(error, OptionError):
        return locate(error, arguments)
    words = [word.strip(".") for word in re.findall(r"[\w.+-]+", str(error))]

    def is_said(key: str, value: str) -> bool:
        whole = (len(value) > 3 or value == "[]") and value in str(error)
        return key in words and (whole or any(_same(value, word) for word in words))

    typed = any(is_said(path[-1], value) for path, value in _options(arguments) if path)
    if typed or re.search(r"\bline \d", str(error)):
        return error
    for file in reversed(config_files(arguments)):
        for path, line, value in _scalars(read_tree(file)):
            if is_said(path[-1], value) and not _on_command_line(".".join(path), arguments):
                return InputError(f"{file}, line {line}: {error}")
    return error


def _same(value: str, word: str) -> bool:
    try:
        nothing = word == "None" and value in ("null", "~", "")
        return nothing or value == word or float(value) == float(word)
    except ValueError:
        return False


def _scalars(node: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int, str]]:
    """Path, line and value of each key that holds one or several; `init_args` is left out."""
    for name, line, below in _children(node):
        path = above if name == "init_args" else (*above, name)
        if isinstance(below, yaml.ScalarNode | yaml.SequenceNode):
            several = below.value if isinstance(below, yaml.SequenceNode) else [below]
            yield from ((path, line, str(one.value)) for one in several)
            if not several:
                yield path, line, "[]"
        else:
            yield from _scalars(below, path)


def leaves(file: Path) -> list[tuple[str, int, str]]:
    """Each key that holds a value, as on the command line, its line and the value.

    Raises:
        InputError: The file is missing, or not YAML.
    """
    return [(".".join(path), line, value) for path, line, value in _scalars(read_tree(file))]


def is_given(key: str, arguments: list[str]) -> bool:
    """Whether the user wrote `key` or something in it, on the command line or in a config file."""
    path = _path(key)
    files = config_files(arguments)
    in_file = any(_line_of(read_tree(file), path, file.parent) for file in files)
    inline = any(
        _line_of(yaml.compose(value, yaml.SafeLoader), path, Path())
        for value in _configs(arguments)
        if value.lstrip().startswith("{")
    )
    below = any(option[: len(path)] == path for option, _ in _options(arguments))
    return in_file or inline or below or _on_command_line(key, arguments)


def _on_command_line(key: str, arguments: list[str]) -> bool:
    """Whether an option is `key`, or holds it; `--model NAME` holds nothing but the name."""
    path = _path(key)
    for option, value in _options(arguments):
        if option == path:
            return True
        if option == path[: len(option)]:
            node = yaml.compose(value, yaml.SafeLoader) if value.lstrip().startswith("{") else None
            node = node or _in_file(value, Path())
            if _line_of(node, path[len(option) :], Path()) is not None:
                return True
    return False


def _in_file(value: str, folder: Path) -> yaml.Node | None:
    """What a value stands for that is the name of a file with it."""
    is_named = value.endswith((".yaml", ".yml", ".json")) and (folder / value).is_file()
    return read_tree(folder / value) if is_named else None


def _options(arguments: list[str]) -> Iterator[tuple[list[str], str]]:
    """Names of the options as paths, and what stands behind them."""
    for number, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            yield _path(name[2:]), value if equals else "".join(arguments[number + 1 : number + 2])


def _path(key: str) -> list[str]:
    return [part for part in key.split(".") if part != "init_args"]


def _children(node: Any) -> Iterator[tuple[str, int, yaml.Node]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue  # a list or mapping as a key: refused by `_refuse_repeated`
            yield str(key.value), key.start_mark.line + 1, value


def _line_of(node: yaml.Node | None, path: list[str], folder: Path | None = None) -> int | None:
    """Line of the key at `path`; the level `init_args` may stand between or not.

    With the `folder` of the file also where another file stands for a part, as its line there.
    """
    for name, line, below in _children(node):
        if folder is not None and isinstance(below, yaml.ScalarNode):
            below = _in_file(str(below.value), folder) or below
        if name == "init_args":
            found = _line_of(below, path, folder)
        elif path and name == path[0]:
            found = line if len(path) == 1 else _line_of(below, path[1:], folder)
        else:
            continue
        if found is not None:
            return found
    return None
