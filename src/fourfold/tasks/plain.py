"""Configs as plain values, which a checkpoint may hold, and back."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from fourfold.core.errors import InputError


def from_plain(kind: Any, values: Any) -> Any:
    """The dataclass that `asdict` made plain, and those inside it.

    Raises:
        InputError: The values are of another class, or such as no object of it can have.
    """
    if not isinstance(values, Mapping):
        raise InputError(f"{str(values)[:80]!r} is no {kind.__name__}")
    known = {field.name for field in fields(kind)}
    if strange := [str(name) for name in values if name not in known]:
        raise InputError(f"{kind.__name__} has no {strange[0][:80]!r}")
    inside = {field.name: field.type for field in fields(kind) if is_dataclass(field.type)}
    built = {name: from_plain(inside[name], values[name]) for name in inside if name in values}
    return kind(**{**values, **built})


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """What is inside a section, as `section.name`."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{key}": inner for key, inner in flat(value).items()}
        else:
            found[name] = value
    return found


def listed(value: Any) -> Any:
    """Tuples as lists: what went through a file has none."""
    return list(value) if isinstance(value, tuple) else value
