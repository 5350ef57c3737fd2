"""`fourfold.load`: from a path to a model that works."""

from pathlib import Path

from torch import nn

from fourfold.core.errors import InputError
from fourfold.tasks.checkpoint import load_task


def load(path: str | Path) -> nn.Module:
    """The model of a fourfold checkpoint or run directory, in eval mode, with its `.config`.

    Args:
        path: A `.ckpt` file, or the directory of a run, whose last checkpoint is taken.

    Raises:
        InputError: There is no such checkpoint, or it is broken.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "checkpoints" / "last.ckpt"
    model = load_task(path).model
    if not isinstance(model, nn.Module):
        raise InputError(f"{path}: the checkpoint holds no model")
    return model
