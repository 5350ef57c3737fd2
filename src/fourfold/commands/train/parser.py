"""Parser of configs and their command-line options, with one-line errors.

jsonargparse prints its usage and a tree of type errors. `Parser` raises an InputError with the key
and the closest known key instead. jsonargparse also creates a `Parser` for each nested class, so
errors arrive from the inside out and each outer parser adds its key as a prefix.
"""

import re
from ast import literal_eval
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from importlib import import_module
from inspect import signature
from traceback import walk_tb
from typing import Any, NoReturn, get_args, get_type_hints

from jsonargparse import Namespace
from lightning import LightningDataModule
from lightning.pytorch.cli import LightningArgumentParser

import fourfold.data
import fourfold.tasks
from fourfold.commands.train.config_files import unknown_key
from fourfold.errors import InputError
from fourfold.models.finetuning.config import TuningConfig
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.tasks import Task

MAX_QUOTED = 80  # characters of a value in a message
MAX_MESSAGE = 300  # characters of a message of jsonargparse


class Parser(LightningArgumentParser):
    """`LightningArgumentParser` that raises InputError instead of printing and exiting."""

    def __init__(self, *args: Any, **options: Any) -> None:
        # jsonargparse creates parsers of nested classes without options.
        super().__init__(*args, **{"allow_abbrev": False, **options})

    def parse_args(self, args: Any = None, *more: Any, **options: Any) -> Any:
        """Parse arguments; the None of a nested parser's arguments becomes YAML's null again."""
        if args is not None:
            args = [re.sub("=None$", "=null", argument) for argument in args]
            args = _merge_allowed_classes(args)
        return super().parse_args(args, *more, **options)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise InputError, with the key at fault if there is one."""
        raise explain(message, ex, self) from ex


def _merge_allowed_classes(args: list[str]) -> list[str]:
    """Merge repeated `--allow_class pkg.Class` options into one list, as other commands do."""
    others: list[str] = []
    classes: list[str] = []
    values = iter(args)
    for argument in values:
        name, equals, value = argument.partition("=")
        if name not in ("--allow_class", "--allow-class"):
            others.append(argument)
            continue
        value = value if equals else next(values, "")
        classes += [text.strip() for text in value.strip("[]").split(",") if text.strip()]
    return [*others, f"--allow_class={classes}"] if classes else others


def import_all_classes() -> None:
    """Import all tasks and DataModules, so that configs can name them without their module."""
    for package in (fourfold.tasks, fourfold.data):
        for name in package.__all__:
            getattr(package, name)


def explain(message: str, cause: BaseException | None, parser: Any) -> InputError:
    """Return the error for a message of jsonargparse.

    Args:
        message: Message of jsonargparse.
        cause: The exception behind it.
        parser: The parser that reports it.

    Raises:
        Exception: The import of a user's module failed; the exception is the user's own.
    """
    if match := re.match(r"unrecognized arguments: -*([^\s=]+)", message):
        return _unknown_option(match[1], parser)
    if match := re.match(r"Option '(.+)' is not accepted", message):
        return _unknown_option(match[1], parser)
    if match := re.match(r"Group '(.+)' does not accept option '(.+)'", message):
        return _unknown_option(f"{match[1]}.{match[2]}", parser)
    if match := re.match(r"Subcommand '(.+)' does not accept option '(.+)'", message):
        return _unknown_option(match[2], parser._subcommands_action.choices[match[1]])
    if match := re.match(r"the following arguments are required: (.+)", message):
        missing = " and ".join(sorted(name.split(".")[-1] for name in match[1].split(", ")))
        return InputError("must be given, for example by --config FILE", option=missing)
    if match := re.match(r'Parser key "(.+?)":(.*)', message, re.DOTALL):
        return _wrong_value(match[1], match[2], cause)
    return InputError(" ".join(message.split())[:MAX_MESSAGE], option="the config:")


def _unknown_option(key: str, parser: Any) -> InputError:
    known = list(known_options(parser))
    return unknown_key(key, known if "." in key else [*known, *_nested_options()])


def known_options(parser: Any) -> Iterator[str]:
    """Yield the names of all options of a parser."""
    for option in parser._option_string_actions:
        if option.startswith("--") and not option.endswith((".help", "+")):
            yield option.removeprefix("--")


def _nested_options() -> Iterator[str]:
    """Yield options that a parser only adds once the task and the DataModule are known."""
    sections = {"optimizer": OptimizerConfig, "schedule": ScheduleConfig, "tuning": TuningConfig}
    for section, config in sections.items():
        yield from (f"model.{section}.{field.name}" for field in fields(config))
    for data in _subclasses(LightningDataModule):
        yield from (f"data.{name}" for name in signature(data).parameters)


def _wrong_value(key: str, details: str, cause: BaseException | None) -> InputError:
    """Return the error of a value that does not fit, from jsonargparse's details or its cause."""
    while cause is not None and not isinstance(cause, InputError):
        cause = cause.__cause__ or cause.__context__
    if cause is not None and cause.option is not None:
        message = cause.message.replace("did you mean ", f"did you mean {key}.")
        if not cause.message.startswith("is not a known key"):
            message = cause.message
        return InputError(message, option=f"{key}.{cause.option.removeprefix('init_args.')}")
    if cause is not None:
        return InputError(f"is wrong: {cause.message}", option=key)
    if match := re.search(r"File does not exist: '(.+)'", details):
        return InputError(f"must name an existing file, got {match[1]}", option=key)
    return _wrong_class(key, details) or _wrong_type(key, details)


def _wrong_class(key: str, details: str) -> InputError | None:
    """Return the error of a class_path that names no suitable class; None for other errors."""
    if match := re.search(
        r"Import path (\S* ?)does not correspond to a subclass of (\w+)", details
    ):
        given = re.search(r"Given value: (\S+)", details)
        name = match[1].strip() or (given[1] if given else "another class")
        return InputError(f"must be a subclass of {match[2]}, got {name}", option=key)
    if re.search(r"'\w+' object (?:has no attribute|is not)", details):
        return InputError("must be a mapping", option=f"{key}.init_args")
    match = re.search(r"(?:class_path '|dot import path string: '?)([\w.]+)", details)
    if match is None:
        return None
    module, _, name = match[1].rpartition(".")
    if module:
        try:
            import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise  # an import inside the user's module
            return InputError(f"must be a class, but there is no module {error.name}", option=key)
    bases = re.findall(r"(?:<class '|list\[)([\w.]+)\.(\w+)", details)
    classes = [getattr(import_module(home), base) for home, base in bases if home != "builtins"]
    names = [c.__name__ for b in classes if isinstance(b, type) for c in _subclasses(b)]
    close = get_close_matches(name, names, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return InputError(f"must be a class, got {match[1]}{hint}", option=key)


def _wrong_type(key: str, details: str) -> InputError:
    """Return the error of a value of the wrong type, or outside the choices."""
    pattern = r"Unable to load config ['\"](.*?)['\"]\s*(?:- Parser|$)"
    if match := re.search(pattern, details, re.DOTALL):
        return InputError(f"must be a mapping, got {quoted(match[1])}", option=key)
    given = re.search(r"(?:Given value|Got value): (.*)", details)
    value = given[1].strip() if given else ""
    if nested := re.match(r"NestedArg\(key='(.+)', val='(.*)'\)", value):
        key = f"{key}.{nested[1]}"
        value = nested[2]
    choices: list[str] = []
    for literal in re.findall(r"Literal(\[.*?\])", details):
        choices += [str(choice) for choice in literal_eval(literal)]
    types = re.findall(r"Expected a <class '(?:[\w.]+\.)?(\w+?)(?:Type)?'>", details)
    if not choices and not types:
        return InputError(f"is wrong: {' '.join(details.split())[:MAX_MESSAGE]}", option=key)
    close = get_close_matches(value, choices, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    allowed = [f"one of {', '.join(choices)}"] if choices else []
    allowed += [f"of type {' or '.join(dict.fromkeys(types))}"] if types else []
    return InputError(f"must be {' or '.join(allowed)}, got {quoted(value)}{hint}", option=key)


def constructor_error(error: Exception) -> Exception:
    """Return the exception that a constructor raised, which jsonargparse wraps in its own.

    Args:
        error: Exception of `parser.instantiate`.
    """
    while isinstance(error.__cause__, Exception) and _was_raised_by_jsonargparse(error):
        error = error.__cause__
    return error


def _was_raised_by_jsonargparse(error: Exception) -> bool:
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1].f_globals.get("__name__", "").startswith("jsonargparse")


def _subclasses(base: type[Any]) -> Iterator[type[Any]]:
    for child in base.__subclasses__():
        yield child
        yield from _subclasses(child)


def quoted(value: Any) -> str:
    """Return a value as it is quoted in a message: shortened, and visible if it is blank."""
    text = str(value)
    if not text.strip():
        return repr(text)
    return text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}..."


def check_sections(config: Any) -> None:
    """Check that `model` and `data` name classes and that sections are mappings.

    jsonargparse accepts a scalar in place of a group of keys.

    Raises:
        InputError: Names the section.
    """
    for name in ("trainer", "checkpoint"):
        _check_mapping(name, config.get(name))
    for name in ("model", "data"):
        section = config.get(name)
        if section is None:
            raise InputError("must be given, for example by --config FILE", option=name)
        path = section.get("class_path") if isinstance(section, Namespace) else None
        module, _, class_name = str(path).rpartition(".")
        cls = getattr(import_module(module), class_name) if module else None
        if cls is None or cls in (Task, LightningDataModule):
            raise InputError("must have a class_path", option=name)
        arguments = section.get("init_args") or Namespace()
        for argument, is_optional in _nested_sections(cls).items():
            if argument in arguments and not (arguments[argument] is None and is_optional):
                _check_mapping(f"{name}.{argument}", arguments[argument])


def _nested_sections(cls: type[Any]) -> dict[str, bool]:
    """Return the arguments of a class that are dataclasses, and whether each may be None."""
    hints: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        try:
            hints |= get_type_hints(vars(base)["__init__"]) if "__init__" in vars(base) else {}
        except NameError:  # a user's class, with names that are imported for type checking only
            continue
    members = {name: get_args(hint) or (hint,) for name, hint in hints.items()}
    return {
        name: type(None) in types
        for name, types in members.items()
        if any(is_dataclass(member) for member in types)
    }


def _check_mapping(name: str, value: Any) -> None:
    if not isinstance(value, Namespace | dict) and not is_dataclass(value):
        raise InputError(f"must be a mapping, got {quoted(value)}", option=name)
