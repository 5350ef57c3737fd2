"""Tasks from checkpoints: `load_task`, checks, and the reader of checkpoints for the Trainer."""

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning
from torch import Tensor

from fourfold.checkpoints.classes import Classes, find_user_class, is_shipped, public_path
from fourfold.checkpoints.files import find_checkpoint, is_run, is_sharded, read_file
from fourfold.checkpoints.load import check_classes, load_weights, stored_defaults
from fourfold.checkpoints.schema import (
    WEIGHT_PREFIX,
    check_content,
    check_init_args,
    check_training,
)
from fourfold.errors import InputError, errors_in, reading
from fourfold.families import SHARED, import_member, members
from fourfold.hub.directory import within_vocabulary

if TYPE_CHECKING:
    from fourfold.training.task import Task


def load_task(
    path: str | Path,
    expect: str | tuple[str, ...] | None = None,
    classes: Classes = (),
    overrides: Mapping[str, Any] | None = None,
    strict: bool = True,
) -> "Task[Any, Any]":
    """Load a task from a checkpoint, in eval mode, with its model, tokenizer and preprocessing.

    Args:
        path: A checkpoint written by `fourfold fit` or `fourfold import`, or a run directory of
            `fourfold fit`.
        expect: Name of a task class, or several names. The task must be an instance of one of these
            classes; None accepts every class.
        classes: Your own task classes, or their import paths, that may be imported if the
            checkpoint requires them.
        overrides: Arguments of the task's constructor that replace those in the checkpoint. A
            dataclass may be given as a mapping of the fields that change.
        strict: False ignores weights that only the checkpoint or only the task has.

    Raises:
        InputError: There is no such checkpoint; it is corrupted; its task is not one of `expect`;
            or the task is neither part of fourfold nor in `classes`.
    """
    path = find_checkpoint(Path(path)) if is_run(path) else Path(path)
    content = read_file(path)
    check_content(content, path)
    saved = content["fourfold"]
    task_class = find_task_class(saved["task"]["class"], path, classes)
    arguments = {"config": saved["model"]["config"], **saved["task"]["init_args"]}
    for name, given in (overrides or {}).items():
        value = asdict(given) if is_dataclass(given) and not isinstance(given, type) else given
        is_partial = isinstance(value, Mapping) and isinstance(arguments.get(name), Mapping)
        arguments[name] = {**arguments[name], **value} if is_partial else value
    config, state = arguments.pop("config"), content["state_dict"]
    with (reading if is_shipped(task_class) else errors_in)(path):
        check_init_args(task_class, arguments)
        task = task_class.from_checkpoint(config, arguments, state if strict else None)
        task.artifacts = saved["data"]  # on which the metrics depend
        task.configure_model()
    load_weights(task, state, path, strict)
    check_classes(task.config, saved["data"], path)
    defaults = stored_defaults(content, path)
    task.model.generation_defaults = within_vocabulary(defaults, task.model, path)
    expected = (expect,) if isinstance(expect, str) else expect
    if expected and not {cls.__name__ for cls in type(task).__mro__}.intersection(expected):
        needed = " or ".join(expected)
        problem = f"the checkpoint holds the task {type(task).__name__}, but {needed} is needed"
        raise InputError(problem, file=path)
    return task.eval()


def find_task_class(name: str, path: Path, classes: Classes = ()) -> "type[Task[Any, Any]]":
    """Return the task class with the import path that a checkpoint contains.

    Only classes of fourfold and the classes in `classes` are allowed, so that a checkpoint cannot
    import arbitrary code.
    """
    from fourfold.training.task import Task  # here, since that module imports this one

    package, _, short = public_path(name).rpartition(".")
    if package == "fourfold.tasks":
        is_task = short in members("tasks") and short not in SHARED["tasks"]
        found = import_member("tasks", short) if is_task else None
    else:
        found = find_user_class(name, classes, path)
    if not isinstance(found, type) or not issubclass(found, Task):
        raise InputError(f"{name[:200]} is not a task", file=path)
    return found


def read_for_trainer(path: str | Path, *, meta: bool = False) -> dict[str, Any]:
    """Read a checkpoint for Lightning's Trainer, with tensors on the CPU.

    With `meta`, the weights and optimizer states of a sharded checkpoint stay on the meta device.

    Lightning requires its version number, which a checkpoint of `fourfold import` lacks. It also
    passes weights from a subprocess to the main process in a file that contains only weights; the
    content of such a file is returned without further checks.

    Raises:
        InputError: The file does not exist, is corrupted, or was not written by this version of
            fourfold.
    """
    content = read_file(path, meta=meta)
    is_state_dict = all(isinstance(value, Tensor) for value in content.values())
    if is_state_dict and any(name.startswith(WEIGHT_PREFIX) for name in content):
        return content
    stored = not (meta and is_sharded(path))
    check_content(content, path, stored=stored)
    with reading(path):
        check_training(content, stored=stored)
    content.setdefault("pytorch-lightning_version", lightning.__version__)
    return content
