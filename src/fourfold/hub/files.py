"""Foreign models of every format, by what is found at a path: one door for all who read them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fourfold.core.errors import InputError
from fourfold.hub import directory, foreign, nanogpt

_MINGPT_WEIGHTS = "model.pt"


@dataclass(frozen=True)
class Found:
    """A foreign model.

    Args:
        model: In fp32 and eval mode; with its `Origin` if it can go back there unchanged.
        named: What the format calls it.
        artifacts: What its format says of its data, unless it is one of transformers.
        notes: What was assumed, for the user.
    """

    model: nn.Module
    named: str
    artifacts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def is_foreign(content: Mapping[str, Any]) -> bool:
    """Whether what a file of weights holds is of a format that is known here."""
    return nanogpt.is_nanogpt(content) or nanogpt.is_mingpt(content)


def read(place: Path, content: Mapping[str, Any] | None, *, headless: bool = False) -> Found:
    """The model of a directory with a config.json, or of what one file holds.

    Args:
        place: The directory or the file.
        content: What the file holds; None for a directory.
        headless: Whether a model of images may lack what classifies: it is to be filled anew.

    Raises:
        InputError: It is broken, or holds something that no model of ours is.
    """
    found = _read_directory(place) if content is None else _read_file(place, content)
    model: Any = found.model
    if hasattr(model, "heads") and not headless:
        lacking = 1 + model.config.distillation - len(model.heads)
        if lacking:
            raise InputError(
                f"{place}: it lacks {lacking} of the {1 + model.config.distillation} heads that"
                " classify: a training can begin with it by init_from, which makes new heads"
            )
    return found


def _read_directory(place: Path) -> Found:
    said = directory.read_config(place)
    if "model_type" not in said:
        weights = place / _MINGPT_WEIGHTS
        if weights.is_file():
            return _mingpt(directory.read_pickle(weights), said, weights)
    model = foreign.read(place)
    return Found(model, str(said["model_type"]))


def _read_file(place: Path, content: Mapping[str, Any]) -> Found:
    if nanogpt.is_nanogpt(content):
        return Found(nanogpt.read(content, str(place)), "nanoGPT")
    beside = directory.read_config(place.parent) if directory.is_directory(place.parent) else {}
    if nanogpt.is_mingpt(content):
        return _mingpt(content, beside, place)
    raise InputError(
        f"{place}: neither a transformers directory nor a checkpoint of nanoGPT or minGPT"
    )


def _tensors(content: Mapping[str, Any], place: Path) -> dict[str, Tensor]:
    for name, value in content.items():
        if not isinstance(value, Tensor):
            raise InputError(f"{place}: {name} is no tensor, but a {type(value).__name__}")
    return dict(content)


def _mingpt(content: Mapping[str, Any], said: Mapping[str, Any], place: Path) -> Found:
    return Found(nanogpt.read_mingpt(_tensors(content, place), said, str(place)), "minGPT")
