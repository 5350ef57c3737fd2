"""Model classes and configs. A class is imported when it is first accessed."""

from functools import partial

from fourfold.families import import_member, members

__getattr__ = partial(import_member, "models")


def __dir__() -> list[str]:
    return list(members("models"))
