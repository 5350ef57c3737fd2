"""Sections of a parsed config that are none: to jsonargparse, 7 may be a group of keys."""

from dataclasses import is_dataclass
from importlib import import_module
from typing import Any, get_args, get_type_hints

from jsonargparse import Namespace

from fourfold.commands.parser import OptionError, shown
from fourfold.core.errors import InputError
from fourfold.data.datamodule import EpochData
from fourfold.tasks import Task

BASES = (Task, EpochData)  # what a section without a class of its own is taken for


def check_sections(config: Any) -> None:
    """Make sure that model and data are classes, and that where keys belong there are some.

    Raises:
        InputError: Names the section, and what stands there.
    """
    for name in ("trainer", "checkpoint"):
        _require_keys(name, config.get(name))
    for name in ("model", "data"):
        section = config.get(name)
        if section is None:
            raise InputError(f"{name} must be given: use --config FILE")
        path = section.get("class_path") if isinstance(section, Namespace) else None
        module, _, kind = str(path).rpartition(".")
        found = getattr(import_module(module), kind) if module else None
        if found is None or found in BASES:
            raise OptionError(name, "there is no class_path in it")
        arguments = section.get("init_args") or Namespace()
        for argument, declared in _sections_of(found).items():
            if argument in arguments and not (arguments[argument] is None and None in declared):
                _require_keys(f"{name}.{argument}", arguments[argument])


def _sections_of(kind: type[Any]) -> dict[str, tuple[Any, ...]]:
    """The arguments of a class that are groups of keys, and whether None may stand for one."""
    hints: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        try:
            hints |= get_type_hints(vars(base)["__init__"]) if "__init__" in vars(base) else {}
        except NameError:  # a user's class, with types that only a checker imports
            continue
    several = {name: get_args(hint) or (hint,) for name, hint in hints.items()}
    return {
        name: tuple(None if part is type(None) else part for part in parts)
        for name, parts in several.items()
        if any(is_dataclass(part) for part in parts)
    }


def _require_keys(name: str, value: Any) -> None:
    if not isinstance(value, Namespace | dict) and not is_dataclass(value):
        raise OptionError(name, f"is {shown(value)}, but must be a mapping")
