"""`fourfold.load` and `fourfold.save`: from a path to a model that works, and back."""

from pathlib import Path

from torch import nn

from fourfold.hub import directory, files, foreign
from fourfold.tasks.convert import load_with_origin
from fourfold.tasks.start import read_foreign, read_weights


def load(path: str | Path) -> nn.Module:
    """A model in eval mode, with its `.config`.

    Args:
        path: A `.ckpt` file; the directory of a run, whose best checkpoint is taken, else its
            average or its last; a directory of transformers or timm, `config.json` beside
            `model.safetensors`; weights of timm, nanoGPT or minGPT; or, where there is a network, a
            model's name on the hub, `owner/name`.

    Raises:
        InputError: There is no such checkpoint, it is broken, or it is of an unknown architecture.
    """
    path = directory.located(path)
    if directory.is_directory(path):
        return read_foreign(path).model
    if path.suffix != ".ckpt" and path.is_file() and files.is_foreign(read_weights(path)):
        return read_foreign(path).model
    return load_with_origin(path)[1]


def save(model: nn.Module, path: str | Path) -> None:
    """Write `model` as a directory that transformers' `AutoModel*.from_pretrained` reads.

    A model that was loaded from such a directory goes back to the same architecture and data type,
    with everything that fourfold had no place for.

    Args:
        model: A model of one of the families.
        path: The directory, made if it does not exist.

    Raises:
        InputError: No architecture of transformers is this model; the sentence says why.
    """
    foreign.write(model, Path(path))
