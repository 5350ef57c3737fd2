"""Parser of configs and of their command-line options, whose errors are one-line InputErrors.

jsonargparse prints its usage and a tree of type errors. `Parser` raises an InputError instead, with
the dotted name of the invalid key, such as model.config.d_model, and the closest known key.
jsonargparse creates a further `Parser` for each nested class. That parser's error names only the
last part, such as d_model. The outer parser raises it again with the full name.
"""

import re
from collections.abc import Iterator
from dataclasses import fields
from difflib import get_close_matches
from importlib import import_module
from inspect import signature
from pkgutil import resolve_name
from traceback import walk_tb
from typing import Any, Literal, NoReturn

from jsonargparse import Namespace
from lightning import Callback, LightningDataModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser

import fourfold.data
import fourfold.tasks
from fourfold.checkpoints.schema import TASK_SECTIONS
from fourfold.commands.train.config_files import (
    check_files,
    check_option_values,
    config_files,
    unknown_key,
)
from fourfold.core.precision import AUTO
from fourfold.core.validation import suggestion
from fourfold.errors import InputError
from fourfold.optim import DECOUPLED
from fourfold.tasks import Task

MAX_QUOTED = 80  # characters of a value in a message
MAX_MESSAGE = 300  # characters of a message of jsonargparse
# Messages of jsonargparse about an unknown key, whose parts are the groups of this pattern.
UNKNOWN_KEY = (
    r"unrecognized arguments: -*([^\s=]+)|(?:Group '(.+)' does not accept o|O)ption '(.+?)' "
)


class Parser(LightningArgumentParser):
    """`LightningArgumentParser` that raises InputError instead of printing and exiting."""

    def __init__(self, *args: Any, **options: Any) -> None:
        # jsonargparse creates parsers of nested classes without options.
        super().__init__(*args, **{"allow_abbrev": False, **options})

    def add_class_arguments(
        self, theclass: Any, nested_key: Any = None, *more: Any, **options: Any
    ) -> list[str]:
        """Add the arguments of a class as options, and return their dotted names.

        The option `precision` of the Trainer also accepts "auto".

        Args:
            theclass: Class whose constructor has the arguments.
            nested_key: Prefix of the dotted names, such as "trainer"; None for no prefix.
            *more: Further arguments of the method of the base class.
            **options: Further keyword arguments of the method of the base class.
        """
        if theclass is not Trainer:
            return super().add_class_arguments(theclass, nested_key, *more, **options)
        options["skip"] = {"precision", *options.get("skip", ())}
        added = super().add_class_arguments(theclass, nested_key, *more, **options)
        name = f"{nested_key}.precision"
        values = signature(Trainer).parameters["precision"].annotation | Literal[AUTO]
        help_text = "Lightning's values; auto is bf16-mixed if the device is fast at it, or 32-true"
        self.add_argument(f"--{name}", type=values, default=None, help=help_text)
        return [*added, name]

    def parse_args(self, args: Any = None, *more: Any, **options: Any) -> Any:
        """Parse arguments and return the config; `--allow_class` may be given several times."""
        if args is not None:
            # jsonargparse writes the value None of a nested argument as "None" instead of null.
            args = [re.sub("=None$", "=null", argument) for argument in args]
            args = [re.sub(r"^--allow_class(?==|$)", "--allow_class+", text) for text in args]
            # argparse takes a negative number such as -1e-4 for an option.
            text = re.sub(r"(\0--[^\0=]+)\0(?=-[\d.])", r"\1=", "\0".join(["", *args]))
            args = text.split("\0")[1:]
        return super().parse_args(args, *more, **options)

    def validate(self, namespace: Any, *args: Any, **options: Any) -> None:
        """Check all values of a config, and that sections such as `trainer` are mappings.

        jsonargparse itself accepts sections that are not mappings.

        Raises:
            TypeError: A section is not a mapping.
        """
        for name in set(self.groups or ()) - {"model", "data"}:
            if not isinstance(namespace.get(name, Namespace()), Namespace):
                raise TypeError(f'Parser key "{name}": Unable to load config {namespace[name]}')
        super().validate(namespace, *args, **options)

    def instantiate(self, namespace: Any, *args: Any, **options: Any) -> Any:
        """Build the objects of a config. Errors of their constructors are raised unchanged."""
        try:
            return super().instantiate(namespace, *args, **options)
        except Exception as error:
            original = error
        # Raised outside of the except clause, so that jsonargparse's error is not printed, too.
        while isinstance(original.__cause__, Exception) and was_raised_in(original, "jsonargparse"):
            original = original.__cause__
        raise original

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise an InputError in place of an error of jsonargparse.

        Args:
            message: Message of jsonargparse.
            ex: Exception that jsonargparse reports with the message, if any.

        Raises:
            InputError: Always, except in the following case.
            Exception: The import of a user's module failed. The exception of that module is raised
                unchanged.
        """
        text = " ".join(message.split())
        if match := re.match(UNKNOWN_KEY, f"{text} "):
            raise unknown_key(".".join(filter(None, match.groups())), known_keys(self)) from ex
        if match := re.match(r"the following arguments are required: (.+)", text):
            missing = " and ".join(sorted(match[1].split(", ")))
            raise InputError("must be given, for example by --config FILE", option=missing) from ex
        if match := re.match(r'Parser key "(.+?)": ?(.*)', text):
            raise _invalid_value(match[1], match[2], ex) from ex
        raise InputError(text[:MAX_MESSAGE], option="the config:") from ex


def was_raised_in(error: Exception, prefix: str | tuple[str, ...]) -> bool:
    """Return True if an exception was raised by a line of code in one of the given modules.

    Args:
        error: The exception.
        prefix: Prefix of module names, such as "lightning.", or a tuple of prefixes.
    """
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1].f_globals.get("__name__", "").startswith(prefix)


def import_all_classes() -> None:
    """Import all tasks and DataModules, so that configs can use class names without the module."""
    for name in fourfold.data.__all__:  # imported on first use, unlike the tasks
        getattr(fourfold.data, name)


def parse_config(parser: Parser, arguments: list[str]) -> tuple[Namespace, Namespace]:
    """Parse arguments, and return the config with and without default values.

    Args:
        parser: Parser of the arguments.
        arguments: Command-line options, among them `--config FILE`.

    Returns:
        The config with default values, and the config with only the values that the user gave.

    Raises:
        InputError: A config file or an argument is invalid, or the model or the data are missing.
    """
    check_option_values(arguments)
    known = known_keys(parser)
    check_files(config_files(arguments), {key.split(".")[0] for key in known})
    shown = [text for text in arguments if not text.startswith("--print_config")]
    given = parser.parse_args(shown, defaults=False)
    config = parser.parse_args([*arguments, *_without_penalty(given)])
    for name in sorted(set(parser.groups or ()) - {"model", "data"}):
        # An option of the section replaces a value that is not a mapping, without default values.
        if any(key.startswith(f"{name}.") and key not in config for key in known):
            raise InputError("must be a mapping, such as {KEY: VALUE}", option=name)
    for name in ("model", "data"):
        section = config[name]
        if section is None or resolve_name(section["class_path"]) in (Task, LightningDataModule):
            raise InputError("must have a class_path, for example from --config FILE", option=name)
    return config, given


def _without_penalty(given: Namespace) -> list[str]:
    """Return the option that sets the weight decay to 0 where an L2 penalty is not asked for.

    A task has default values for its own optimizer. If the user selects another one without a
    weight decay, then the decay of that default must not become an L2 penalty.

    Args:
        given: The config with only the values that the user gave.
    """
    chosen = given.get("model.init_args.optimizer")
    if not isinstance(chosen, Namespace) or "weight_decay" in chosen:
        return []
    argument = signature(resolve_name(given["model.class_path"])).parameters.get("optimizer")
    own = getattr(getattr(argument, "default", None), "name", None)
    adds_penalty = chosen.get("name", own) not in (own, *DECOUPLED)
    return ["--model.optimizer.weight_decay=0.0"] if adds_penalty else []


def known_keys(parser: Parser) -> list[str]:
    """Return the dotted names of all options of a parser, such as trainer.max_steps.

    The parser of a whole config has further keys: the arguments of all DataModules (data.NAME) and
    the fields of optimizer, schedule and tuning (model.SECTION.NAME).
    """
    options = [name for name in parser._option_string_actions if name.startswith("--")]
    keys = [name[2:] for name in options if not name.endswith((".help", "+"))]
    if "model" not in keys:
        return keys  # the parser of a nested class
    for section, config in TASK_SECTIONS.items():
        keys += [f"model.{section}.{field.name}" for field in fields(config)]
    for data in _subclasses(LightningDataModule):
        keys += [f"data.{name}" for name in signature(data).parameters]
    return keys


def _subclasses(base: type[Any]) -> Iterator[type[Any]]:
    for child in base.__subclasses__():
        yield child
        yield from _subclasses(child)


def _invalid_value(key: str, details: str, cause: BaseException | None) -> InputError:
    """Return the InputError for an invalid value of a config key.

    Args:
        key: Dotted name of the key.
        details: The part of jsonargparse's message after the key.
        cause: The exception that jsonargparse reports with the message, if any. If it was caused by
            an InputError of a nested parser, the message of that error replaces `details`.
    """
    while cause is not None and not isinstance(cause, InputError):
        cause = cause.__cause__ or cause.__context__
    if cause is not None:
        hint = "is not a known key; did you mean "
        nested = (cause.option or "").removeprefix("init_args.")
        return InputError(
            cause.message.replace(hint, f"{hint}{key}."), option=f"{key}.{nested}".rstrip(".")
        )
    pattern = r"(?:Given value:|Got value:|load config) ?['\"]?(.*?)['\"]?(?: - Parser key.*)?$"
    given = re.search(pattern, details)
    # A line separator in the value moves the end of the message to the same line.
    value = re.split(r" - Expected a| Given value type:", given[1])[0] if given else ""
    value = value[:MAX_QUOTED]
    if nested_value := re.match(r"NestedArg\(key='(.+)', val='?(.*?)'?\)", value):
        key = f"{key}.{nested_value[1]}"
        value = nested_value[2]
    if "Unable to load config" in details:
        return InputError(f"must be a mapping, got {value}", option=key)
    if re.search(r"'\w+' object has no attribute", details):
        return InputError("must have a mapping as init_args", option=key)
    if re.search("Expected a path|class_path|mport path|not iterable", details):
        return _invalid_class(key, value, details)
    allowed = []
    for name, choices in re.findall(r"Expected an? (?:<class '([\w.]+)'>|\S+\[(.*?)\])", details):
        allowed += [name.rpartition(".")[2]] if name else re.findall(r"[\w-]+", choices)
    if not allowed:
        return InputError(f"is invalid: {details[:MAX_MESSAGE]}", option=key)
    names = ", ".join(dict.fromkeys(allowed)).replace("NoneType", "null")
    kind = "one of " if len(allowed) > 1 else "of type "
    hint = suggestion(value, allowed)
    return InputError(f"must be {kind}{names}, got {value or repr(value)}{hint}", option=key)


def _invalid_class(key: str, value: str, details: str) -> InputError:
    """Return the InputError for a value that does not name a suitable class.

    Args:
        key: Dotted name of the config key.
        value: The value, such as an import path.
        details: The part of jsonargparse's message after the key.
    """
    match = re.search(r"(?:class_path '|class_path': '|path string: )([\w.]+)", details)
    path = match[1] if match else value
    module, _, name = path.rpartition(".")
    reason = ""
    try:
        import_module(module or "fourfold")
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # an import inside the user's module
        reason = f": {error}"
    bases = (Task, LightningDataModule, Callback)
    names = [child.__name__ for base in bases for child in _subclasses(base)]
    if name not in names and (close := get_close_matches(name, names, n=1)):
        reason = f"; did you mean {close[0]}?"
    subclass = re.search(r"subclass of \w+", details)
    if subclass and subclass[0] == "subclass of Task" and not reason:
        reason = "; a LightningModule that is not a Task can be trained by lightning.Trainer"
    kind = subclass[0] if subclass else "class" if path else "mapping"
    return InputError(f"must be a {kind}, got {path or repr(path)}{reason}", option=key)
