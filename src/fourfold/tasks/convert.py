"""Whole checkpoints in and out: a model with its tokenizer or preprocessing, as a task."""

import os
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

import fourfold.tasks
from fourfold.callbacks.checkpoint_io import AtomicCheckpointIO
from fourfold.core.errors import InputError
from fourfold.hub import foreign, processing, timm
from fourfold.hub.labels import labels, numbered
from fourfold.models import CLIP, SequenceClassifier, SpanExtractor
from fourfold.models.lora import merge_lora
from fourfold.tasks import Task
from fourfold.tasks.checkpoint import checkpoint_of, read_checkpoint, read_file, rebuild
from fourfold.tasks.start import Source, read_foreign

_TIMM = "timm:"  # in front of the directory to write


def task_of(model: nn.Module) -> type[Task]:
    """The task whose model this is."""
    known: list[Any] = [getattr(fourfold.tasks, name) for name in fourfold.tasks.__all__]
    found: type[Task] = next(
        kind for kind in known if getattr(kind, "model_class", None) is type(model)
    )
    return found


def import_directory(source: Path, target: Path) -> list[str]:
    """Make a fourfold checkpoint of a foreign model.

    Args:
        source: A directory of transformers or timm, or a model's name on the hub; or a file of
            timm, nanoGPT or minGPT.
        target: The checkpoint file, which must not exist.

    Returns:
        What was done, in lines for the user.

    Raises:
        InputError: `target` exists, or the directory cannot be read.
    """
    if target.exists():
        raise InputError(f"{target} exists already; name another file")
    found = read_foreign(source)
    model: Any = found.model
    origin: foreign.Origin | None = getattr(model, "origin", None)
    task = task_of(model)(model.config)  # type: ignore[call-arg]
    task.model, task.artifacts = model, _read_beside(found, origin)
    checkpoint: dict[str, Any] = {} if origin is None else {"origin": asdict(origin)}
    checkpoint["state_dict"] = task.state_dict()
    task.on_save_checkpoint(checkpoint)
    AtomicCheckpointIO(read_file).save_checkpoint(checkpoint, target)
    n = sum(p.numel() for p in model.parameters())
    assert found.foreign is not None
    beside = ", ".join(task.artifacts) or "no tokenizer was there"
    return [
        f"{source}: {found.foreign.named}, {n:,} parameters, as {type(task).__name__}",
        *found.foreign.notes,
        f"wrote {target} ({beside})",
    ]


def _read_beside(source: Source, origin: foreign.Origin | None) -> dict[str, Any]:
    """What stands beside the weights, as the data that train such a model would give it."""
    model: Any = source.model
    found: dict[str, Any] = {"tokenizer": source.tokenizer} if source.tokenizer else {}
    if origin is None:
        return found | dict(source.foreign.artifacts if source.foreign else {})
    if hasattr(model.config, "image_size"):
        size, channels = model.config.image_size, model.config.n_channels
        found |= processing.read_images(source.path, origin.config, size, channels)
        if isinstance(model, CLIP):
            del found["class_names"]  # its data have none
    elif hasattr(model.config, "n_classes"):
        k = model.config.n_classes
        names = processing.class_names(origin.config) or numbered(k)
        names = names if k > 1 else []
        found |= {"class_names": names, "max_len": model.config.max_len}
    if source.tokenizer and isinstance(model, SequenceClassifier | SpanExtractor):
        found["separators"] = processing.separators(source.tokenizer)
    return found


def export_checkpoint(source: Path, target: Path) -> list[str]:
    """Make a directory of transformers, or of timm, of a fourfold checkpoint.

    Args:
        source: The checkpoint file or run directory.
        target: The directory, which must not exist or be empty; `timm:DIRECTORY` for timm's format.

    Returns:
        What was done, in lines for the user.

    Raises:
        InputError: `target` is not empty, the checkpoint cannot be read, or no architecture of
            transformers is its model.
    """
    to_timm = str(target).startswith(_TIMM)
    target = Path(str(target).removeprefix(_TIMM))
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target} exists already and is not empty; name another directory")
    task, model = load_with_origin(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target and renamed, so that nothing half-written is ever there.
    part = Path(tempfile.mkdtemp(dir=target.parent, prefix=target.name + "."))
    try:
        if to_timm:
            named = timm.write(model, part, task.artifacts)
        else:
            named = foreign.write(model, part, _write_beside(part, task, model))
        part.chmod(0o755)  # mkdtemp lets nobody else in
        if target.exists():
            target.rmdir()
        os.replace(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return [f"{source}: {type(task).__name__} as {named}", f"wrote {target}"]


def _write_beside(folder: Path, task: Task, model: Any) -> dict[str, Any]:
    """Write tokenizer and preprocessing, if any; returns what config.json says of them."""
    found, more, two_towers = task.artifacts, {}, isinstance(model, CLIP)
    if "tokenizer" in found:
        length = model.config.max_len
        between = found.get("separators", 1)
        more = processing.write_tokenizer(folder, found["tokenizer"], model, length, between)
        if found.get("class_names"):
            more |= labels(found["class_names"])
    if two_towers:  # which have a rule of their own for the end of a text
        more = {f"text_config.{k}": n for k, n in more.items() if k != "eos_token_id"}
    if "eval_crop" in found:
        more |= processing.write_images(folder, found, is_clip=two_towers)
    return more


def load_with_origin(path: Path) -> tuple[Task, nn.Module]:
    """A checkpoint's task and model; the model knows where it was imported from, if it was.

    Raises:
        InputError: There is no such checkpoint, or it is broken.
    """
    if path.is_dir():
        path = checkpoint_of(path)
    content = read_checkpoint(path)
    task = rebuild(content, path)
    model = merge_lora(task.model)
    if "origin" in content:
        model.origin = foreign.Origin(**content["origin"])  # type: ignore[assignment]
    return task, model
