"""Configs as plain values, which a checkpoint may hold, and back."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any


def from_plain(kind: Any, values: Mapping[str, Any]) -> Any:
    """The dataclass that `asdict` made plain, and those inside it."""
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
