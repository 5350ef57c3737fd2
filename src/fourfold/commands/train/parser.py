"""Parser of configs and of their command-line options, whose errors are one-line InputErrors.

jsonargparse prints its usage and a tree of type errors. `Parser` raises an InputError instead, with
the dotted name of the key. jsonargparse creates a further `Parser` for each nested class. That
parser's error names only the last part, such as d_model. The outer parser raises it again with the
full name.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from inspect import signature
from pkgutil import resolve_name
from traceback import walk_tb
from typing import Any, Literal, NoReturn

from jsonargparse import Namespace
from lightning import LightningDataModule, Trainer
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.cli import LightningArgumentParser

import fourfold.data
import fourfold.tasks
from fourfold.core.precision import AUTO
from fourfold.errors import InputError
from fourfold.optim import DECOUPLED
from fourfold.training.task import Task

# Options that are left out of a config without a value, so that a config.yaml names them only if
# they are used.
OPTIONAL = ("optimizer", "lr_scheduler")
# Module of a class in a message of jsonargparse.
CLASS_PATH = r"(?:Given value: |path string: |class_path\W{1,5})['\"]?([A-Za-z_][\w.]*)\.\w+"
MAX_MESSAGE = 400  # characters of a message of jsonargparse, which lists the types of an option


class Parser(LightningArgumentParser):
    """`LightningArgumentParser` that raises InputError instead of printing and exiting."""

    requires_all = True

    def __init__(self, *args: Any, **options: Any) -> None:
        # jsonargparse creates parsers of nested classes without options.
        super().__init__(*args, **{"allow_abbrev": False, **options})

    def add_class_arguments(
        self, theclass: Any, nested_key: Any = None, *more: Any, **options: Any
    ) -> list[str]:
        """Add the arguments of a class; the option `precision` of the Trainer also accepts auto."""
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
        self.requires_all = options.get("defaults", True)  # a required option may have a default
        if args is not None:
            # jsonargparse writes the value None of a nested argument as "None" instead of null.
            args = [re.sub("=None$", "=null", text) for text in args]
            args = [re.sub(r"^--allow_class(?==|$)", "--allow_class+", text) for text in args]
        return super().parse_args(args, *more, **options)

    def validate(self, namespace: Any, *args: Any, **options: Any) -> None:
        """Check a config; without the default values, no option is required."""
        options |= {} if self.requires_all else {"skip_required": True}
        super().validate(namespace, *args, **options)

    def dump(self, namespace: Any, *args: Any, **options: Any) -> str:
        """Return a config as YAML, without `optimizer` and `lr_scheduler` if they are None."""
        if "skip_none" in options:  # Lightning's name, from before jsonargparse 4.49
            options["skip_unset"] = options.pop("skip_none")
        namespace = namespace.clone()
        for name in OPTIONAL:
            if name in namespace and namespace[name] is None:
                del namespace[name]
        return super().dump(namespace, *args, **options)

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
        """Raise an InputError with a message of jsonargparse, whose last line comes first.

        If the import of a user's module failed, its own exception is raised unchanged.
        """
        for path in re.findall(CLASS_PATH, message):
            import_users_module(path)
        key, text = "", message.strip()
        if match := re.match(r'Parser key "(.+?)": *(.*)', text, re.DOTALL):
            key, text = match.groups()
        nested: BaseException | None = ex
        while nested is not None and not isinstance(nested, InputError):
            nested = nested.__cause__ or nested.__context__
        if nested is not None:  # of the parser of a nested class
            inner = (nested.option or "").removeprefix("init_args.")
            name = f"{key}.{inner}" if inner else f"{key}:"
            raise InputError(nested.message, option=name.strip(".")) from ex
        lines = [" ".join(line.split()).removeprefix("- ") for line in text.splitlines()]
        *first, last = filter(None, lines)
        described = "; ".join([last, *first])[:MAX_MESSAGE]
        raise InputError(described, option=f"{key}:" if key else None) from ex


def import_users_module(name: str) -> None:
    """Import a module; errors inside of it are raised, but not that there is no such module."""
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        if not f"{name}.".startswith(f"{error.name}."):
            raise


def was_raised_in(error: Exception, prefix: str | tuple[str, ...]) -> bool:
    """Return True if an exception was raised by a line of code in one of the given modules.

    Args:
        error: The exception.
        prefix: Prefix of module names, such as "lightning.", or a tuple of prefixes.
    """
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1].f_globals.get("__name__", "").startswith(prefix)


@contextmanager
def trainer_errors(*modules: str, option: str = "trainer:") -> Iterator[None]:
    """Convert errors of Lightning or torch about arguments to InputErrors, in a `with` block.

    Args:
        modules: Prefixes of module names, such as "lightning.". Only errors that were raised in
            these modules are converted.
        option: The option that the InputError names.
    """
    try:
        yield
    except (MisconfigurationException, ImportError, TypeError, ValueError) as error:
        if was_raised_in(error, modules):
            raise InputError(str(error).strip(), option=option) from error
        raise


def import_classes(names: Iterable[str] | None = None) -> None:
    """Import tasks and DataModules, so that configs can use class names without the module.

    Args:
        names: Names of the classes, among others; None means all of them.
    """
    for package in (fourfold.tasks, fourfold.data):
        for name in (*dir(package), *getattr(package, "__all__", ())) if names is None else names:
            getattr(package, name, None)  # imported on first use


def parse_config(parser: Parser, arguments: list[str]) -> tuple[Namespace, Namespace]:
    """Parse arguments, and return the config with and without default values.

    Args:
        parser: Parser of the arguments.
        arguments: Command-line options, among them `--config FILE`, perhaps after a subcommand.

    Returns:
        The config with default values, and the config with only the values that the user gave.

    Raises:
        InputError: A config file or an argument is invalid, or the model or the data are missing.
    """
    shown = [text for text in arguments if not text.startswith("--print_config")]
    given = parser.parse_args(shown, defaults=False)
    command = given.get("subcommand")
    config = parser.parse_args([*arguments, *_without_penalty(given.get(command, given))])
    for name in ("model", "data"):
        section = config.get(command, config)[name]
        if section is None or resolve_name(section["class_path"]) in (Task, LightningDataModule):
            raise InputError("must have a class_path, for example from --config FILE", option=name)
    return config, given


def _without_penalty(given: Namespace) -> list[str]:
    """Return the option that sets the weight decay to 0 where an L2 penalty is not asked for.

    A task has default values for its own optimizer. If the user selects another one without a
    weight decay, then the decay of that default must not become an L2 penalty.
    """
    chosen = given.get("model.init_args.optimizer")
    if not isinstance(chosen, Namespace) or "weight_decay" in chosen:
        return []
    argument = signature(resolve_name(given["model.class_path"])).parameters.get("optimizer")
    own = getattr(getattr(argument, "default", None), "name", None)
    adds_penalty = chosen.get("name", own) not in (own, *DECOUPLED)
    return ["--model.optimizer.weight_decay=0.0"] if adds_penalty else []
