"""Models of ours from directories of transformers, and directories from models."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fourfold.core.errors import InputError
from fourfold.hub import directory
from fourfold.hub.architecture import Architecture, choose, said_of, say
from fourfold.hub.bert import BERT, DISTILBERT, ROBERTA
from fourfold.hub.clip import CLIP
from fourfold.hub.fine_tuned import FINE_TUNED
from fourfold.hub.gpt import GPT1, GPT2
from fourfold.hub.marian import BART, MARIAN, PEGASUS
from fourfold.hub.t5 import T5_BOTH
from fourfold.hub.vit import DEIT, VIT
from fourfold.hub.waves import in_halves

# In the order in which a model without a history is offered to them.
ARCHITECTURES: tuple[Architecture, ...] = (
    *FINE_TUNED, DISTILBERT, ROBERTA, BERT, GPT2, GPT1, VIT, DEIT, MARIAN, PEGASUS, BART, T5_BOTH,
    CLIP,
)  # fmt: skip


@dataclass(frozen=True)
class Origin:
    """Where a model came from, so that it can go back there unchanged.

    Args:
        config: The config.json it was read with.
        rest: Tensors of theirs that the model has no place for, by their names.
        bare: Whether it was stored without its head, under names without a prefix.
    """

    config: Mapping[str, Any]
    rest: Mapping[str, Tensor]
    bare: bool


def read(path: Path) -> nn.Module:
    """The model of a transformers directory, in fp32 and eval mode, with its `Origin` as `origin`.

    A model of images without some of its heads has none in their place, see `files.read`.

    Raises:
        InputError: The directory is broken, or holds something that no model of ours is.
    """
    said = directory.read_config(path)
    candidates = _known(said, path)
    theirs = {_modern(name): x for name, x in directory.read_tensors(path).items()}
    # By their class if config.json names it: a tagger may carry a pooler that nobody uses.
    classes = said.get("architectures")
    classes = classes if isinstance(classes, list) else []
    named = [a for a in candidates if a.only and a.only in classes]
    architecture = (named or [a for a in candidates if a.holds(theirs.keys())])[0]
    bare = not any(name.startswith(architecture.prefix) for name in theirs)
    if bare:
        theirs = {architecture.prefix + name: x for name, x in theirs.items()}
    where = str(path / directory.CONFIG)
    config: Any = architecture.read_config(said, theirs.keys(), where)
    try:
        with torch.device("meta"):
            model: Any = architecture.family(config)
    except RuntimeError as error:  # torch cannot count so many weights
        raise InputError(f"{where}: the model that it describes is too large") from error
    if architecture.heads is not None:
        model.heads = model.heads[: architecture.heads(theirs.keys())]
    ours, rest = architecture.keys.read(theirs, model.state_dict(), str(path))
    model = model.to_empty(device="cpu")
    _fill_constants(model, architecture.family, config)
    _compare_constants(architecture, model, rest, path)
    model.load_state_dict({name: x.float() for name, x in ours.items()})
    model.origin = Origin(said, rest, bare)
    whole: nn.Module = model.eval()
    return whole


def leftovers(source: nn.Module, target: nn.Module) -> dict[str, Tensor]:
    """What a directory held beside the model read from it, and `target` has a place for.

    Such as BERT's pooler, which a language model does not have and a classifier does.
    """
    origin = getattr(source, "origin", None)
    if not isinstance(origin, Origin):
        return {}
    named, wanted = origin.config.get("model_type"), target.state_dict()
    fits = [a for a in ARCHITECTURES if a.model_type == named and a.family is type(target)]
    return {
        k: x.float() for a in fits for k, x in a.keys.read_some(origin.rest, wanted, "").items()
    }


def write(model: nn.Module, path: Path, more: Mapping[str, Any] | None = None) -> str:
    """Write a model as a directory that transformers' `from_pretrained` reads.

    Args:
        model: A model of one of the families.
        path: The directory, made if it does not exist.
        more: What config.json says besides, unless the model came with a config.json.

    Returns:
        The class of transformers that it is, and what is a little different there.

    Raises:
        InputError: No architecture of transformers is this model.
    """
    origin = getattr(model, "origin", None)
    if isinstance(origin, Origin):
        candidates, rest = _known(origin.config, path), origin.rest
        architecture = next(a for a in candidates if type(model) is a.family)
    else:
        model = in_halves(model)
        architecture, rest = choose(ARCHITECTURES, model), {}
    ours = {name: x.cpu() for name, x in model.state_dict().items()}  # where `rest` is
    theirs, left = architecture.keys.write(ours, rest)
    if left:
        raise InputError(f"{architecture.model_type} has no place for {', '.join(left)}")
    said = architecture.write_config(model.config)
    for key, value in (more or {}).items():
        say(said, key, value)
    if not isinstance(origin, Origin):
        types = {x.dtype for x in theirs.values() if x.is_floating_point()}
        if len(types) == 1:  # read again, it will have this one
            say(said, "dtype", str(types.pop()).removeprefix("torch."))
    else:
        said = _kept(architecture, origin.config, said, theirs)
        theirs = {name: x.to(_dtype(origin.config)) for name, x in theirs.items()}
        if origin.bare:
            theirs = {name.removeprefix(architecture.prefix): x for name, x in theirs.items()}
    directory.write(path, said, theirs)
    kind, here = str(said["architectures"][0]), model.config.norm_eps  # type: ignore[union-attr]
    there = architecture.read_config(said, theirs.keys(), str(path)).norm_eps
    note = "" if here == there else f" (its norms add {there:g} where these add {here:g})"
    return kind + note


def _kept(
    architecture: Architecture,
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    names: Mapping[str, Tensor],
) -> dict[str, Any]:
    """An old config.json with those of its keys renewed that no longer say the same.

    Its numbers of special tokens stay: they are its tokenizer's and not ours.
    """
    before = architecture.read_config(old, names, architecture.model_type)
    after = architecture.read_config(new, names, architecture.model_type)
    changed = [f for f in architecture.fields if getattr(before, f.ours) != getattr(after, f.ours)]
    kept = {"architectures": new["architectures"], **old}
    renewed = [key for field in changed for key in field.theirs]
    if renewed:
        renewed += [k for k in architecture.written(after) if not k.endswith("_token_id")]
    for key in renewed:
        for value in said_of(new, key):
            say(kept, key, value)
    return kept


def _known(config: Mapping[str, Any], path: Path) -> list[Architecture]:
    """The architectures of a model_type, the last of which holds whatever the others do not."""
    named = config.get("model_type")
    found = [a for a in ARCHITECTURES if a.model_type == named]
    if not found:
        names = ", ".join(dict.fromkeys(a.model_type for a in ARCHITECTURES))
        raise InputError(
            f"{path / directory.CONFIG}: model_type is {named!r}, but fourfold knows {names}"
        )
    return found


def _modern(name: str) -> str:
    """Checkpoints converted from TensorFlow call a norm's weight and bias gamma and beta."""
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def _fill_constants(model: nn.Module, family: type[nn.Module], config: Any) -> None:
    """What is computed rather than stored (waves) was lost on the meta device."""
    computed = [name for name, _ in model.named_buffers()]
    if computed:
        fresh = dict(family(config).named_buffers())
        for name, buffer in model.named_buffers():
            buffer.copy_(fresh[name])


def _compare_constants(
    architecture: Architecture, model: nn.Module, rest: Mapping[str, Tensor], path: Path
) -> None:
    buffers = dict(model.named_buffers())
    for theirs, ours in architecture.constants.items():
        if theirs in rest:
            stored, computed = rest[theirs].float(), buffers[ours]
            alike = stored.shape == computed.shape and torch.allclose(
                stored, computed, rtol=0.0, atol=1e-2 if rest[theirs].dtype.itemsize < 4 else 1e-4
            )
            if not alike:
                raise InputError(f"{path}: {theirs} is not the table of waves that it should be")


def _dtype(config: Mapping[str, Any]) -> torch.dtype:
    named = config.get("dtype") or config.get("torch_dtype") or "float32"
    found = getattr(torch, str(named).removeprefix("torch."), None)
    return found if isinstance(found, torch.dtype) else torch.float32
