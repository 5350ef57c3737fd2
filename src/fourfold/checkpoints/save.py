"""Saving of a model as a directory, in the format of transformers or in fourfold's own format."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fourfold.atomic_files import disk_errors
from fourfold.checkpoints import native_directory
from fourfold.errors import InputError
from fourfold.hub import directory
from fourfold.layers.base_model import Model

# File that describes the model, in the format of transformers and in fourfold's own format.
DESCRIPTIONS = (directory.CONFIG_FILE, native_directory.DESCRIPTION)


def save(model: Model, path: str | Path) -> None:
    """Write a model to a directory that `fourfold.load` reads.

    If transformers has the architecture, `AutoModel*.from_pretrained` reads the directory too. A
    model that was loaded from a Hugging Face directory keeps the architecture and the data type of
    that directory. Tensors of that directory that fourfold does not use are written too. A model
    whose architecture transformers lacks is written in fourfold's own format: fourfold.json,
    model.safetensors and tokenizer.json.

    No file in the directory is ever incomplete, since the files are written to a temporary
    directory and then moved.

    Args:
        model: A model of fourfold, or an instance of your own model class with the attribute
            `config`.
        path: The directory, which is created if it does not exist.

    Raises:
        InputError: `path` is a file.
        DiskError: The disk is full or fails.
    """
    path = Path(path)
    if path.exists() and not path.is_dir():
        raise InputError("this is a file, but a directory is needed", file=path)
    with disk_errors(path), staged_directory(path) as folder:
        try:
            write_transformers(model, folder)
        except InputError:  # transformers has no such architecture
            shutil.rmtree(folder)
            folder.mkdir()
            native_directory.write(model, folder)


def write_transformers(model: Any, folder: Path) -> str:
    """Write a model with its tokenizer and preprocessing for transformers to an existing folder.

    Returns:
        The name of the transformers class, and a note if the exported model has another `norm_eps`.

    Raises:
        InputError: transformers has no such architecture.
    """
    from fourfold.hub import transformers_format  # imports all architectures

    return transformers_format.write_model(model, folder, _write_preprocessing(model, folder))


def write_graphs(model: Any, folder: Path, file_format: str) -> list[str]:
    """Write a model as traced graphs (`graph_files.write_graphs`), with its preprocessing."""
    from fourfold.hub import graph_files

    return graph_files.write_graphs(model, folder, file_format, _write_preprocessing(model, folder))


def _write_preprocessing(model: Any, folder: Path) -> dict[str, Any]:
    """Write the files of a model's tokenizer and image preprocessing, if the model has them.

    The result has the entries that config.json must contain, such as class names, by dotted key.
    """
    from fourfold.hub import preprocessing

    artifacts, is_clip = getattr(model, "artifacts", {}), hasattr(model.config, "image_tower")
    keys: dict[str, Any] = {}
    preprocessing.write_sentence_files(folder, artifacts.get("sentence_transformers", {}))
    if getattr(model, "tokenizer", None) is not None:
        keys = preprocessing.write_tokenizer(folder, model)
    if is_clip:  # CLIP has its own rule for the token that ends a text
        keys = {f"text_config.{k}": value for k, value in keys.items() if k != "eos_token_id"}
    if "crop_pct" in artifacts:
        is_clip = is_clip and not hasattr(model.config, "pad_id")  # SigLIP changes the aspect ratio
        preprocessing.write_image_preprocessing(folder, artifacts, is_clip=is_clip)
    if artifacts.get("class_names"):
        keys |= preprocessing.label_mappings(artifacts["class_names"])
    if artifacts.get("multi_label"):
        keys["problem_type"] = preprocessing.MULTI_LABEL
    return keys


@contextmanager
def staged_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary directory, and move its files to `path` if the `with` block succeeds.

    If `path` does not exist, the temporary directory is renamed to `path` in one step. In an
    existing directory, files of the same name are replaced one by one, also those in folders, the
    file that describes the model last. If `path` then contains the descriptions of both formats,
    the older one is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(dir=path.parent, prefix=path.name + "."))
    try:
        yield staged
        staged.chmod(0o755)  # mkdtemp makes it private
        if path.exists() and any(path.iterdir()):
            files = [str(x.relative_to(staged)) for x in staged.rglob("*") if x.is_file()]
            for name in sorted(files, key=lambda name: name in DESCRIPTIONS):
                (path / name).parent.mkdir(parents=True, exist_ok=True)
                os.replace(staged / name, path / name)
            for name in set(DESCRIPTIONS).difference(files):  # description in the other format
                (path / name).unlink(missing_ok=True)
        else:
            os.replace(staged, path)  # also replaces an empty directory
    finally:
        shutil.rmtree(staged, ignore_errors=True)
