"""Errors of the command line and of configs as one sentence, with what was probably meant.

jsonargparse prints pages of usage and then a tree of what did not match. The parser below is also
the one that it makes for each nested class, so an error arrives here from the inside out: the
innermost knows what is wrong, each outer one adds its key.
"""

import re
from ast import literal_eval
from collections.abc import Iterable, Iterator
from dataclasses import fields
from difflib import get_close_matches
from importlib import import_module
from inspect import signature
from typing import Any, NoReturn

from lightning.pytorch.cli import LightningArgumentParser

from fourfold.commands.errors import hidden_input_error
from fourfold.core.errors import InputError
from fourfold.data.datamodule import EpochData
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.tasks.tuning import TuningConfig

KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "NoneType": "null",
         "str": "a text", "list": "a list", "tuple": "a list", "Iterable": "a list",
         "dict": "a mapping"}  # fmt: skip


class OptionError(InputError):
    """A wrong option or key of a config.

    Args:
        key: Its name, with dots.
        problem: What is wrong with it.
    """

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}{' ' if problem.startswith('is ') else ': '}{problem}")
        self.key, self.problem = key, problem


class Parser(LightningArgumentParser):
    """LightningCLI's parser, which says what is wrong in place of printing and exiting."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **options})  # nested ones ask for nothing

    def parse_args(self, args: Any = None, *more: Any, **options: Any) -> Any:
        """Parse; a null that jsonargparse hands to a nested parser as `None` is one again."""
        if args is not None:
            args = [re.sub("=None$", "=null", argument) for argument in args]
        return super().parse_args(args, *more, **options)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise InputError, with a key where one is at fault."""
        raise explain(message, ex, self) from ex


def explain(message: str, cause: BaseException | None, parser: Any) -> InputError:
    """The error to raise for a message of jsonargparse and the exception behind it."""
    if found := re.match(r"unrecognized arguments: -*([^\s=]+)", message):
        return unknown(found[1], known_options(parser))
    if problem := no_class(message) if message.startswith("Subclasses are disabled") else None:
        return InputError(problem)
    if found := re.match(r"Option '(.+)' is not accepted", message):
        return unknown(found[1], known_options(parser))
    if found := re.match(r"Group '(.+)' does not accept option '(.+)'", message):
        return unknown(f"{found[1]}.{found[2]}", known_options(parser))
    if found := re.match(r"Subcommand '(.+)' does not accept option '(.+)'", message):
        return unknown(found[2], known_options(parser._subcommands_action.choices[found[1]]))
    if found := re.match(r"the following arguments are required: (.+)", message):
        missing = " and ".join(sorted(name.split(".")[-1] for name in found[1].split(", ")))
        return InputError(f"{missing} must be given: use --config FILE")
    if found := re.match(r'Parser key "(.+?)":(.*)', message, re.DOTALL):
        return wrong_value(found[1], found[2], cause)
    return InputError(" ".join(message.split())[:300])


def unknown(key: str, known: Iterable[str]) -> OptionError:
    """There is no such key; perhaps its last part is misspelt, or it stands elsewhere."""
    known = list(known)
    close = get_close_matches(key, known, n=1, cutoff=0.75)
    leaf = key.rsplit(".", 1)[-1]
    below = [*known, *nested_options()] if leaf == key else known
    elsewhere = [name for name in below if name.rsplit(".", 1)[-1] == leaf]
    meant = close or elsewhere
    return OptionError(
        key, "there is no such key" + (f"; did you mean {meant[0]}?" if meant else "")
    )


def nested_options() -> Iterator[str]:
    """Names of options that the parser only knows once it has a task and its data."""
    parts = {"optimizer": OptimizerConfig, "schedule": ScheduleConfig, "tuning": TuningConfig}
    for part, config in parts.items():
        yield from (f"model.{part}.{field.name}" for field in fields(config))
    for data in _subclasses(EpochData):
        yield from (f"data.{name}" for name in signature(data).parameters)


def known_options(parser: Any) -> Iterator[str]:
    """Names of all options of a parser."""
    for option in parser._option_string_actions:
        if option.startswith("--") and not option.endswith((".help", "+")):
            yield option.removeprefix("--")


def wrong_value(key: str, details: str, cause: BaseException | None) -> InputError:
    """The value of `key` does not fit, for the reason in `details` or in a nested error."""
    inner = hidden_input_error(cause)
    if isinstance(inner, OptionError):
        inside = inner.key.removeprefix("init_args.")
        return OptionError(f"{key}.{inside}", _qualify(key, inner.problem))
    if inner is not None:
        return OptionError(key, str(inner))
    if found := re.search(r"File does not exist: '(.+)'", details):
        return OptionError(key, f"there is no file {found[1]}")
    if problem := no_class(details):
        return OptionError(key, problem)
    return mismatch(key, details)


def no_class(details: str) -> str | None:
    """What is wrong with the name of a class, if that is it."""
    if found := re.search(r"Import path (\S+) does not correspond to a subclass of (\w+)", details):
        return f"{found[1]} is no {found[2]}"
    if found := re.search(r"Subclasses are disabled for (\w+), thus '(.*?)'", details):
        return f"{found[2]} is no {found[1]}"
    pattern = r"(?:class_path '|dot import path string: '?)([\w.]+)"
    if found := re.search(pattern, details):
        if re.search(r"'\w+' object (?:has no attribute|is not)", details):
            return "init_args must be a mapping"
        return f"there is no class {found[1]}{similar_class(found[1], details)}"
    if found := re.search(r"\{'class_path': ('[^']*'|None)", details):
        return f"class_path is {found[1]}, which is no class"
    return None


def _qualify(key: str, problem: str) -> str:
    """A suggestion from inside `key`, as it is written outside."""
    return re.sub(r"^(there is no such key; did you mean )", rf"\1{key}.", problem)


def similar_class(wanted: str, details: str) -> str:
    """A class that may have been meant, among those derived from the classes in `details`."""
    bases = re.findall(r"(?:<class '|list\[)([\w.]+)\.(\w+)", details)
    found = [getattr(import_module(module), base) for module, base in bases]
    names = {cls.__name__: f"{cls.__module__}.{cls.__name__}"
             for base in found if isinstance(base, type)  # and no union of several
             for cls in _subclasses(base)}  # fmt: skip
    close = get_close_matches(wanted.rsplit(".", 1)[-1], names, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _subclasses(cls: type[Any]) -> Iterator[type[Any]]:
    for child in cls.__subclasses__():
        yield child
        yield from _subclasses(child)


def mismatch(key: str, details: str) -> OptionError:
    """A value of the wrong type, or not among those allowed."""
    pattern = r"Unable to load config ['\"](.*?)['\"]\s*(?:- Parser|$)"
    if found := re.search(pattern, details, re.DOTALL):
        return OptionError(key, f"is {shown(found[1])}, but must be a mapping")
    words: list[str] = []
    kinds: list[str] = []
    expected = r"Expected a (?:typing\.Literal(\[.*?\])|<class '([\w.]+)'>)"
    for choices, kind in re.findall(expected, details):
        if choices:
            words += [str(word) for word in literal_eval(choices)]
        else:
            kinds.append(KINDS.get(kind.rsplit(".", 1)[-1], kind.rsplit(".", 1)[-1]))
    kinds += ["a class_path with init_args"] * (
        "dot import path" in details or "a class path" in details
    )
    found = re.search(r"(?:Given value|Got value): (.*)", details)
    value = found[1].strip() if found else "?"
    if nested := re.match(r"NestedArg\(key='(.+)', val='(.*)'\)", value):
        key, value = f"{key}.{nested[1]}", nested[2]
    if not words and not kinds:
        return OptionError(key, " ".join(details.split())[:300])
    close = get_close_matches(value, words, n=1)
    meant = f"; did you mean {close[0]}?" if close else ""
    several = [f"one of {', '.join(words)}"] * bool(words) + list(dict.fromkeys(kinds))
    several = several[:1] if words and kinds == [KINDS["NoneType"]] else several
    return OptionError(key, f"is {shown(value)}, but must be {' or '.join(several)}{meant}")


def shown(value: Any) -> str:
    """A value as it is quoted in a sentence: not all of a long one, and something for none."""
    text = str(value)
    return (
        text
        if 0 < len(text.strip()) <= 80
        else repr(text if not text.strip() else text[:80] + "...")
    )
