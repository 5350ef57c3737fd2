"""Checks of types, choices and ranges of config fields, which raise an `InputError`."""

import math
from collections.abc import Sequence
from dataclasses import fields
from difflib import get_close_matches
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from fourfold.errors import InputError

MAX_SIZE = 2**31 - 1  # of one dimension; torch counts the elements of a tensor in 64 bits


def check_types(config: Any, *, prefix: str = "") -> None:
    """Raise InputError if a field of a dataclass has a value of another type than declared.

    jsonargparse checks types on the command line, but not the values of a checkpoint or of a
    config.json.

    Args:
        config: A dataclass instance.
        prefix: Text before the name of a field in the error message, such as "optimizer.".
    """
    for field in fields(config):
        check_type(prefix + field.name, getattr(config, field.name), field.type)


def check_type(name: str, value: object, declared: Any) -> None:
    """Raise InputError unless `value` has the type `declared`, such as `int | None`.

    A list is accepted for a tuple, and an int for a float. A bool is not accepted for an int or a
    float.

    Args:
        name: Name of the option that has this value, for the error message.
        value: The value.
        declared: Type annotation of the option.
    """
    members = get_args(declared) if get_origin(declared) in (Union, UnionType) else (declared,)
    choices = [c for member in members if get_origin(member) is Literal for c in get_args(member)]
    types = [
        get_origin(member) or member for member in members if get_origin(member) is not Literal
    ]
    types += [int] * (float in types) + [list] * (tuple in types)
    is_wrong_bool = isinstance(value, bool) and bool not in types  # a bool is also an int
    if value in choices or (isinstance(value, tuple(types)) and not is_wrong_bool):
        return
    names = [t.__name__ for t in types if t is not type(None)]
    if choices and (isinstance(value, str) or not names):
        check_choice(name, value, choices)
    allowed = " or ".join([*map(repr, choices), *names])
    raise InputError(f"must be of type {allowed}, got {str(value)[:80]!r}", option=name)


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Raise InputError unless `value` is one of `choices`; the message suggests the closest.

    Args:
        name: Name of the option that has this value, for the error message.
        value: The value.
        choices: Allowed values.
    """
    if value not in choices:
        names = [str(choice) for choice in choices]
        close = get_close_matches(str(value), names, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise InputError(f"must be one of {', '.join(names)}, got {value!r}{hint}", option=name)


def check_positive(name: str, value: int | None) -> None:
    """Raise InputError for the option `name` unless `value` is None or from 1 to 2**31 - 1."""
    if value is not None and not 1 <= value <= MAX_SIZE:
        bound = "at least 1" if value < 1 else f"at most {MAX_SIZE}"
        raise InputError(f"must be {bound}, got {value}", option=name)


def check_range(
    name: str,
    value: float,
    *,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float = math.inf,
    below: float = math.inf,
) -> None:
    """Raise InputError unless `value` is finite and within the given bounds.

    Args:
        name: Name of the option that has this value, for the error message.
        value: The value.
        minimum: Smallest allowed value; None means no such bound.
        above: Number that the value must exceed; None means no such bound.
        maximum: Largest allowed value.
        below: Number that the value must be less than.
    """
    in_range = value <= maximum and value < below and (minimum is None or value >= minimum)
    if not in_range or (above is not None and not value > above):
        low = f"at least {minimum:g}" if minimum is not None else f"above {above or 0.0:g}"
        high = f" and at most {maximum:g}" if maximum < math.inf else ""
        high = f" and below {below:g}" if below < math.inf else high
        high = high or " and finite" * (not math.isfinite(value))
        raise InputError(f"must be {low}{high}, got {value}", option=name)
