"""Check of config keys against the source code, before torch and Lightning are imported.

The names of all arguments are read from the definitions of the tasks, DataModules, models and
dataclasses of this package, and from Lightning's Trainer. A misspelt key is therefore reported at
once. The parser of the command, which imports everything, checks all other properties of a config.
"""

import ast
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from fourfold.commands.train.config_files import (
    config_files,
    entries,
    options,
    read_tree,
    unknown_key,
)
from fourfold.errors import InputError

PACKAGE = Path(__file__).resolve().parents[2]
FOLDERS = ("tasks", "data", "models", "core", "tokenization")
FILES = ("optim.py", "schedules.py", "commands/train/options.py")
CHECKPOINTS = "callbacks/checkpointing/run_checkpoints.py"
METHODS = ("fit", "validate", "test", "predict")  # methods of the Trainer with options
# Options of LightningCLI, and the sections of a config.
GENERAL = ("config", "help", "print_config", "seed_everything", "model", "data", "trainer")
BASES = {"model": "Task", "data": "LightningDataModule"}  # base class of each section
SEPARATORS = ("class_path", "init_args", "help", "dict_kwargs")  # parts of keys of jsonargparse


def check_keys(arguments: list[str]) -> None:
    """Check that the config files and options of a command line contain no misspelt key.

    Sections with a class of the user are not checked, because its module would have to be imported.

    Args:
        arguments: Command-line arguments that `expand_arguments` returned.

    Raises:
        InputError: A key is not known. For a key in a config file, the error names file and line.
    """
    keys: list[tuple[str, Path | None, int]] = [(name, None, 0) for name, _ in options(arguments)]
    classes: dict[str, set[str]] = {"model": set(), "data": set()}
    for name, value in options(arguments):
        section = name.removesuffix(".class_path")
        if section in classes and not value.startswith("{"):
            classes[section].add(value)
    for file in config_files(arguments):
        for name, line, node in entries(read_tree(file)):
            keys.append((name, file, line))
            section = name.removesuffix(".class_path")
            if section in classes and isinstance(node.value, str):
                classes[section].add(node.value)
    sections = {name: _merged(found, BASES[name]) for name, found in classes.items()}
    sections["trainer"] = _trainer_arguments("__init__")
    for name, origin, line in keys:
        try:
            _check_key(name.replace("init_args.", "").removesuffix("+"), sections)
        except InputError as error:
            raise (error if origin is None else error.in_file(origin, line)) from error


def _check_key(key: str, sections: Mapping[str, Mapping[str, str]]) -> None:
    section, *parts = key.split(".")
    known = sections.get(section) if parts else _options_of_a_run()
    if known is None:
        known = arguments_of("CheckpointOptions") if section == "checkpoint" else {}
    above = section if parts else ""
    for part in parts or [section]:
        if not known or part in SEPARATORS:
            return
        if part not in known:
            siblings = [f"{above}.{name}".lstrip(".") for name in known]
            error = unknown_key(f"{above}.{part}".lstrip("."), siblings)
            raise error if "did you mean" in error.message else _nested(key, part, sections)
        above = f"{above}.{part}".lstrip(".")
        known = arguments_of(known[part])


def _nested(key: str, part: str, sections: Mapping[str, Mapping[str, str]]) -> InputError:
    """Return the error for an unknown key, with a similar key of any level and section as a hint.

    Args:
        key: Dotted name of the unknown key.
        part: The part of the dotted name that is not known.
        sections: For each section, such as "trainer", the result of `arguments_of`.
    """
    dotted = [name for section, known in sections.items() for name in _walk(section, known)]
    last = {name.rpartition(".")[2]: name for name in sorted(dotted, key=len, reverse=True)}
    close = get_close_matches(part, last, n=1, cutoff=0.8)
    hint = f"; did you mean {last[close[0]]}?" if close else ""
    return InputError(f"is not a known key{hint}", option=key)


def _walk(above: str, known: Mapping[str, str]) -> Iterator[str]:
    for name, nested in known.items():
        yield f"{above}.{name}"
        yield from _walk(f"{above}.{name}", arguments_of(nested))


def _merged(paths: set[str], base: str) -> dict[str, str]:
    """Return the arguments of the constructors of several classes, as `arguments_of` does.

    Args:
        paths: Names or import paths of the classes.
        base: Name of the base class. The dict is empty if one of the classes is not a class of this
            package or is not derived from the base class.
    """
    names = [path.rpartition(".")[2] for path in paths]
    is_shipped = all("." not in path or path.startswith("fourfold.") for path in paths)
    found = [arguments_of(name) for name in names if _is_derived(name, base)]
    if not is_shipped or len(found) < len(names) or not all(found):
        return {}
    return {name: nested for known in found for name, nested in known.items()}


def _is_derived(name: str, base: str) -> bool:
    node = _class_definitions().get(name)
    bases = [ast.unparse(item).partition("[")[0] for item in node.bases] if node else []
    return name == base or any(_is_derived(item.rpartition(".")[2], base) for item in bases)


@cache
def arguments_of(name: str) -> dict[str, str]:
    """Return the arguments of a class of this package, without importing it.

    Args:
        name: Name of the class, such as TranslationData.

    Returns:
        Name of each argument of the constructor, with the name of the class in its annotation, or
        "" if it has no class of this package. The dict is empty for an unknown class.
    """
    node = _class_definitions().get(name)
    if node is None:
        return {}
    functions = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
    if init := functions.get("__init__"):
        own = _arguments(init)
        if init.args.kwarg is None:
            return own
    else:
        fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
        own = {ast.unparse(x.target): _class_in(x.annotation) for x in fields if _is_argument(x)}
    inherited: dict[str, str] = {}
    for base in node.bases:
        inherited |= arguments_of(ast.unparse(base).partition("[")[0])
    return inherited | own


def _is_argument(field: ast.AnnAssign) -> bool:
    """Return True if a field of a dataclass is an argument of its constructor."""
    text = ast.unparse(field)
    return "ClassVar[" not in text and "init=False" not in text


def _arguments(function: ast.FunctionDef) -> dict[str, str]:
    arguments = [*function.args.args[1:], *function.args.kwonlyargs]
    return {item.arg: _class_in(item.annotation) for item in arguments}


def _class_in(annotation: ast.expr | None) -> str:
    names = {node.id for node in ast.walk(annotation or ast.Pass()) if isinstance(node, ast.Name)}
    found = sorted(names & _class_definitions().keys())
    return found[0] if len(found) == 1 else ""


@cache
def _class_definitions() -> dict[str, ast.ClassDef]:
    files = [file for folder in FOLDERS for file in (PACKAGE / folder).rglob("*.py")]
    files += [PACKAGE / file for file in (*FILES, CHECKPOINTS)]
    trees = (ast.parse(file.read_text(encoding="utf-8")) for file in files)
    return {
        node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)
    }


@cache
def _trainer_arguments(*methods: str) -> dict[str, str]:
    """Return a dict with the names of the arguments of Lightning's Trainer methods as keys.

    The values are "", since no argument is an object of this package. The dict is empty if the
    source of Lightning is not found.

    Args:
        methods: Names of the methods, such as "__init__" or "fit".
    """
    spec = find_spec("lightning")
    folder = Path(spec.origin).parent if spec and spec.origin else Path()
    file = folder / "pytorch/trainer/trainer.py"
    tree = ast.parse(file.read_text(encoding="utf-8") if file.is_file() else "")
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {name: "" for node in found if node.name in methods for name in _arguments(node)}


def _options_of_a_run() -> dict[str, str]:
    names = dict.fromkeys((*GENERAL, "checkpoint"), "")
    trainer = _trainer_arguments(*METHODS)
    return {**names, **arguments_of("RunOptions"), **trainer} if trainer else {}
