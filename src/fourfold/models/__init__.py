"""Model classes and configs. A class is imported when it is first accessed."""

from typing import Any

from fourfold.families import import_member, members


def __getattr__(name: str) -> Any:
    return import_member("models", name)


def __dir__() -> list[str]:
    return list(members("models"))
