"""How config.json says which classes a head has."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fourfold.core.errors import InputError
from fourfold.hub.architecture import Field


def numbered(n_classes: int) -> list[str]:
    """What transformers calls classes without names."""
    return [f"LABEL_{i}" for i in range(n_classes)]


def labels(names: Sequence[str]) -> dict[str, Any]:
    """What config.json says of classes of these names."""
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }


def _names(n_classes: int) -> Any:
    return labels(numbered(n_classes))["id2label"]


def _count(names: Any) -> int:
    if not isinstance(names, Mapping | tuple):
        raise TypeError  # `Field.value` says where
    return len(names)


# Their default is two.
N_CLASSES = Field("n_classes", ("id2label",), (None, None), _count, _names)


def back(config: Any) -> dict[str, Any]:
    """The same names in the other direction, for a config of ours."""
    return {"label2id": labels(numbered(config.n_classes))["label2id"]}


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
