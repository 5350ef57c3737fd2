"""Conversion of checkpoints from and to the formats of other libraries.

The commands `fourfold import` and `fourfold export` call these functions.
"""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from fourfold.atomic_files import disk_errors
from fourfold.callbacks.checkpointing.atomic_io import AtomicCheckpointIO
from fourfold.checkpoints.classes import Classes
from fourfold.checkpoints.files import find_checkpoint, is_run, read_file
from fourfold.checkpoints.load import load, read_model
from fourfold.checkpoints.save import staged_directory, write_graphs, write_transformers
from fourfold.checkpoints.schema import check_content
from fourfold.errors import InputError, errors_in
from fourfold.families import import_member, members
from fourfold.models import ViT
from fourfold.models.vit import hub_timm as timm


def import_checkpoint(source: Path, target: Path) -> list[str]:
    """Convert a model of another library to a fourfold checkpoint, and return lines about it.

    Args:
        source: Path of a Hugging Face directory of transformers or timm, path of a file of timm,
            nanoGPT or llama2.c, or `hf://owner/name`.
        target: Path of the checkpoint file to write, which must not exist.
    """
    if target.exists():
        raise InputError("this file exists already; name another one", file=target)
    model: Any = read_model(source, dtype=torch.float32)
    if not model.format_name:
        raise InputError("this is a checkpoint of fourfold, which needs no import", file=source)
    with errors_in(source):
        task = make_task(model)
    checkpoint: dict[str, Any] = {} if model.source is None else {"source": asdict(model.source)}
    checkpoint["state_dict"] = task.state_dict()
    task.on_save_checkpoint(checkpoint)
    AtomicCheckpointIO(read_file).save_checkpoint(checkpoint, target)
    n_parameters = sum(p.numel() for p in model.parameters())
    named = f"{model.format_name}, {n_parameters:,} parameters"
    return [
        f"{source}: {named}, as {type(task).__name__}",
        *model.notes,
        f"wrote {target} ({', '.join(task.artifacts) or 'without a tokenizer'})",
    ]


def make_task(model: Any) -> Any:
    """Build the task that trains models of the class of an imported model, in eval mode.

    The tokenizer and the preprocessing of the model become artifacts of the task.

    Raises:
        InputError: An image model has no classification head.
    """
    if isinstance(model, ViT) and not model.heads:
        message = "is missing; use init_from to train a new head, or fourfold.load for the hidden"
        raise InputError(f"{message} states", option="the classification head")
    classes = (import_member("tasks", name) for name in members("tasks"))
    task_class: Any = next(x for x in classes if vars(x).get("model_class") is type(model))
    task = task_class(model.config)
    task.model = model
    task.artifacts = {"tokenizer": model.tokenizer.to_str()} if model.tokenizer else {}
    task.artifacts |= model.artifacts
    return task.eval()


def export_checkpoint(
    source: Path,
    target: Path,
    classes: Classes = (),
    file_format: str = "transformers",
    finish: Callable[[Any, Path], None] | None = None,
) -> list[str]:
    """Convert a checkpoint to a directory in the format of another library; return lines about it.

    Args:
        source: Path of the checkpoint file or of the run directory.
        target: Path of the directory to write, which must be empty or not exist.
        classes: Your own classes, or their import paths, that the checkpoint may name.
        file_format: transformers, timm, torch-export or onnx. With checkpoint, `target` is a file
            that must not exist, to which a sharded checkpoint is converted.
        finish: Function of the model and the directory that adds files, before the directory is
            moved to `target`.
    """
    if file_format == "checkpoint":
        return _write_one_file(source, target)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        message = "this exists already and is not an empty directory; name another one"
        raise InputError(message, file=target)
    model: Any = load(source, classes=classes)
    with disk_errors(target), staged_directory(target) as folder:
        if file_format == "timm":
            name = timm.write_model(model, folder, model.artifacts)
            written = [f"{type(model).__name__} as {name}"]
        elif file_format == "transformers":
            written = [f"{type(model).__name__} as {write_transformers(model, folder)}"]
        else:
            written = write_graphs(model, folder, file_format)
        if finish is not None:
            finish(model, folder)
    return [f"{source}: {written[0]}", *written[1:], f"wrote {target}"]


def _write_one_file(source: Path, target: Path) -> list[str]:
    """Write a checkpoint to one new file, with all states of its training."""
    if target.exists():
        raise InputError("this file exists already; name another one", file=target)
    path = find_checkpoint(source) if is_run(source) else source
    content = read_file(path)
    check_content(content, path)
    AtomicCheckpointIO(read_file).save_checkpoint(content, target)
    return [f"{path}: step {content.get('global_step', 0):,}", f"wrote {target}"]
