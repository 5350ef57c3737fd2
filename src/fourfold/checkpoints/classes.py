"""Lookup of the model class and the task class that a checkpoint names.

Importing a module runs its code. Therefore a class that is not part of fourfold is imported only if
the user allows it.
"""

import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from fourfold.errors import InputError
from fourfold.families import import_member, members
from fourfold.layers.base_model import Model

# Model and task classes, or their import paths, that a checkpoint of the user may name.
Classes = Iterable[type[Any] | str]


def class_path(cls: type[Any]) -> str:
    """Return the import path of a class, such as `mypkg.models.AlibiLM`."""
    return f"{cls.__module__}.{cls.__qualname__}"


def public_path(path: str) -> str:
    """Return the import path of a task as of version 0.3, where tasks had a module before."""
    is_task = path.startswith("fourfold.tasks.")
    return f"fourfold.tasks.{path.rpartition('.')[2]}" if is_task else path


def is_shipped(cls: type[Any]) -> bool:
    """Return True for a class of fourfold, and False for a class of the user."""
    return cls.__module__.partition(".")[0] == "fourfold"


def model_name(cls: type[Any]) -> str:
    """Return the name that a checkpoint stores for a model class.

    A model of fourfold has a bare name, such as `CausalLM`, a user's class its import path.
    """
    is_known = members("models").get(cls.__name__) == cls.__module__
    return cls.__name__ if is_known and is_shipped(cls) else class_path(cls)


def find_user_class(path: str, classes: Classes, file: str | Path | None) -> type[Any]:
    """Return the user's model class or task class that a checkpoint names by its import path.

    Only the import paths in `classes` are imported, never the `path` in the checkpoint itself.

    Raises:
        InputError: `classes` does not contain the class, or has an import path without a class.
    """
    module, _, name = path.rpartition(".")
    for section in ("models", "tasks"):  # of a family that the user registered or installed
        if members(section).get(name) == module:
            return import_member(section, name)
    for given in classes:
        try:
            cls = resolve_name(given) if isinstance(given, str) else given
        except (ImportError, AttributeError, ValueError) as error:
            raise InputError(f"cannot import {given}: {error}", option="--allow_class") from error
        if path in (given, class_path(cls)):
            return cls
    message = f"the checkpoint needs the class {path}, which is not part of fourfold; allow its"
    message += f" import with --allow_class {path} (in Python: classes=[{path.rpartition('.')[2]}])"
    raise InputError(message, file=file)


def find_model_class(
    name: str, config: Mapping[str, Any], classes: Classes, file: str | Path | None
) -> tuple[type[Model], type[Any]]:
    """Return the class of the model in a checkpoint, and the class of that model's config.

    `name` is the name of the class, and `config` has the fields of the config in the checkpoint.
    The other arguments are those of `find_user_class`.

    Raises:
        InputError: There is no such model in fourfold, or the user does not allow the class.
    """
    if "." in name:
        cls = find_user_class(name, classes, file)
        return cls, config_class_of(cls)
    config_name = f"{name}Config"
    if name == "CompositeEncoderDecoder":  # one model class with two config classes
        has_vit = "image_size" in config.get("encoder", ())
        config_name = "ImageToTextConfig" if has_vit else "TextToTextConfig"
    if not {name, config_name} <= members("models").keys():
        raise InputError(f"fourfold has no model {name[:80]!r}", file=file)
    return import_member("models", name), import_member("models", config_name)


def config_class_of(model_class: type[Model]) -> type[Any]:
    """Return the class of the config that a model's constructor takes.

    It is the attribute `config_class` of the model class. Without this attribute, it is the type
    annotation of the constructor's argument `config`, also of that of a parent.

    Raises:
        InputError: The class has neither that attribute nor that annotation.
    """
    declared = getattr(model_class, "config_class", None)
    for cls in model_class.__mro__:
        constructor = vars(cls).get("__init__", object.__init__)
        parameter = inspect.signature(constructor, eval_str=True).parameters.get("config")
        if declared is None and parameter and parameter.annotation is not parameter.empty:
            declared = parameter.annotation
    if not isinstance(declared, type):
        message = "must have an attribute config_class, or a type for the argument `config`"
        raise InputError(message, option=class_path(model_class))
    return declared
