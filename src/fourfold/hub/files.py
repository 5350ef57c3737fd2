"""Foreign models of every format, by what is found at a path: one door for all who read them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fourfold.core.errors import InputError
from fourfold.hub import directory, foreign, nanogpt, processing, timm

_MINGPT_WEIGHTS = "model.pt"
# Its rules take the longest match across characters that a reader sees as one, `tokenizers` the
# shortest within one: decomposed accents come out differently, so it would be another tokenizer.
_SENTENCEPIECE = "the `tokenizers` library normalizes otherwise than sentencepiece, so no tokenizer"


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
    known = (nanogpt.is_nanogpt, nanogpt.is_mingpt, timm.is_timm)
    return any(is_it(content) for is_it in (*known, lambda c: timm.is_timm(_inner(c))))


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
        if "architecture" in said:
            return _timm(directory.read_tensors(place), said, place)
        weights = place / _MINGPT_WEIGHTS
        if weights.is_file():
            return _mingpt(directory.read_pickle(weights), said, weights)
    model = foreign.read(place)
    speaks = any((place / name).is_file() for name in (processing.TOKENIZER, "vocab.txt"))
    left = [] if speaks else sorted(file.name for file in place.glob("*.spm"))
    notes = [f"{' and '.join(left)} not read: {_SENTENCEPIECE}"] if left else []
    return Found(model, str(said["model_type"]), notes=tuple(notes))


def _read_file(place: Path, content: Mapping[str, Any]) -> Found:
    if nanogpt.is_nanogpt(content):
        return Found(nanogpt.read(content, str(place)), "nanoGPT")
    beside = directory.read_config(place.parent) if directory.is_directory(place.parent) else {}
    if nanogpt.is_mingpt(content):
        return _mingpt(content, beside, place)
    for named in (content, _inner(content)):
        if timm.is_timm(named):
            return _timm(named, beside, place)
    raise InputError(
        f"{place}: neither a transformers directory nor a checkpoint of nanoGPT, minGPT or timm"
    )


def _inner(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """DeiT's releases have their tensors one level down."""
    found = content.get("model")
    return found if isinstance(found, dict) else {}


def _tensors(content: Mapping[str, Any], place: Path) -> dict[str, Tensor]:
    for name, value in content.items():
        if not isinstance(value, Tensor):
            raise InputError(f"{place}: {name} is no tensor, but a {type(value).__name__}")
    return dict(content)


def _mingpt(content: Mapping[str, Any], said: Mapping[str, Any], place: Path) -> Found:
    return Found(nanogpt.read_mingpt(_tensors(content, place), said, str(place)), "minGPT")


def _timm(content: Mapping[str, Any], said: Mapping[str, Any], place: Path) -> Found:
    model, assumed = timm.read(_tensors(content, place), said, str(place))
    artifacts, more = timm.images(said, model.config, str(place))
    return Found(model, "timm", artifacts, (*assumed, *more))
