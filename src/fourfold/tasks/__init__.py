"""Tasks: LightningModules that train and evaluate a model, imported when first accessed."""

from functools import partial

from fourfold.families import import_member, members

__getattr__ = partial(import_member, "tasks")


def __dir__() -> list[str]:
    return list(members("tasks"))
