"""Tasks: LightningModules that train and evaluate a model, imported when first accessed."""

from typing import Any

from fourfold.families import import_member, members


def __getattr__(name: str) -> Any:
    return import_member("tasks", name)


def __dir__() -> list[str]:
    return list(members("tasks"))
