"""How config.json says which classes a head has."""

from collections.abc import Collection, Mapping
from typing import Any

from fourfold.core.errors import InputError
from fourfold.hub.architecture import Field


def _names(n_classes: int) -> dict[str, str]:
    return {str(i): f"LABEL_{i}" for i in range(n_classes)}


def _count(names: Any) -> int:
    if not isinstance(names, Mapping | tuple):
        raise TypeError  # `Field.value` says where
    return len(names)


# Their default is two.
N_CLASSES = Field("n_classes", ("id2label",), (None, None), _count, _names)


def back(config: Any) -> dict[str, Any]:
    """The same names in the other direction, for a config of ours."""
    return {"label2id": {name: int(i) for i, name in _names(config.n_classes).items()}}


def counted(names: Collection[str], config: Any) -> dict[str, Any]:
    """The number of classes, where config.json only counts them.

    Raises:
        InputError: A row may have several of them.
    """
    if config.get("problem_type") == "multi_label_classification":
        raise InputError("problem_type multi_label_classification: a row here has one class")
    if "id2label" not in config and "num_labels" in config:
        return {"n_classes": config["num_labels"]}
    return {}
