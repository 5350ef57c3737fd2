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

    Example:
        >>> import tempfile, fourfold
        >>> model = fourfold.create("gpt2", n_layers=1, vocab_size=100)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(model, folder)
        ...     sorted(file.name for file in Path(folder).iterdir())
        ...     type(fourfold.load(folder)).__name__
        ['config.json', 'model.safetensors']
        'CausalLM'
    """
    path = Path(path)
    if path.exists() and not path.is_dir():
        raise InputError("this is a file, but a directory is needed", file=path)
    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    with disk_errors(path, size), staged_directory(path) as folder:
        try:
            write_transformers(model, folder)
        except InputError:  # transformers has no such architecture
            for file in folder.iterdir():
                file.unlink()
            native_directory.write(model, folder)


def write_transformers(model: Any, folder: Path) -> str:
    """Write a model with its tokenizer and preprocessing into a Hugging Face directory.

    Args:
        model: The model. Its attributes `tokenizer` and `artifacts` (values that inference needs,
            such as class names) are written too, if they exist.
        folder: An existing directory.

    Returns:
        Text for the user: the name of the transformers class, and a note if the exported model
        has another `norm_eps` than `model`.

    Raises:
        InputError: transformers has no such architecture.
    """
    from fourfold.hub import transformers_format  # imports all architectures

    return transformers_format.write_model(model, folder, _write_preprocessing(model, folder))


def write_graphs(model: Any, folder: Path, file_format: str) -> list[str]:
    """Write a model as traced graphs, with its tokenizer and its image preprocessing.

    Args:
        model: The model, in fp32 on the CPU and in eval mode.
        folder: An existing directory.
        file_format: "torch-export" or "onnx".

    Returns:
        Lines to print that name the files and the largest difference between graphs and model.

    Raises:
        InputError: The format is unknown, packages are missing, the model cannot be traced, or a
            graph differs from the model.
    """
    from fourfold.hub import graph_files

    facts = _write_preprocessing(model, folder)
    return graph_files.write_graphs(model, folder, file_format, facts)


def _write_preprocessing(model: Any, folder: Path) -> dict[str, Any]:
    """Write the files of a model's tokenizer and image preprocessing, if the model has them.

    Args:
        model: The model, perhaps with the attributes `tokenizer` and `artifacts`.
        folder: An existing directory.

    Returns:
        Entries that config.json must contain, such as special token ids and class names. A key with
        a dot, such as `text_config.pad_token_id`, belongs to a nested dictionary.
    """
    from fourfold.hub import preprocessing
    from fourfold.models.contrastive.clip import CLIP
    from fourfold.models.contrastive.siglip import SigLIP

    artifacts = getattr(model, "artifacts", {})
    tokenizer = getattr(model, "tokenizer", None)
    is_clip = isinstance(model, CLIP)
    keys: dict[str, Any] = {}
    if tokenizer is not None:
        n_separators = artifacts.get("n_separators", 1)
        template = artifacts.get("chat_template")
        keys = preprocessing.write_tokenizer(
            folder, tokenizer.to_str(), model, n_separators, template
        )
    if is_clip:  # CLIP has its own rule for the token that ends a text
        keys = {f"text_config.{k}": value for k, value in keys.items() if k != "eos_token_id"}
    if "crop_pct" in artifacts:
        is_clip = is_clip and not isinstance(model, SigLIP)  # which changes the aspect ratio
        preprocessing.write_image_preprocessing(folder, artifacts, is_clip=is_clip)
    if artifacts.get("class_names"):
        keys |= preprocessing.label_mappings(artifacts["class_names"])
    return keys


@contextmanager
def staged_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary directory, and move its files to `path` if the `with` block succeeds.

    If `path` does not exist, the temporary directory is renamed to `path` in one step. In an
    existing directory, files of the same name are replaced one by one. The file that describes the
    model is replaced last: config.json in the format of transformers, fourfold.json in fourfold's
    own format. If `path` then contains both of these files, the older file is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(dir=path.parent, prefix=path.name + "."))
    try:
        yield staged
        staged.chmod(0o755)  # mkdtemp makes it private
        if path.exists() and any(path.iterdir()):
            _replace_files(staged, path)
        else:
            os.replace(staged, path)  # also replaces an empty directory
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def _replace_files(staged: Path, path: Path) -> None:
    names = sorted(os.listdir(staged), key=lambda name: name in DESCRIPTIONS)
    for name in names:
        os.replace(staged / name, path / name)
    for name in set(DESCRIPTIONS).difference(names):  # description in the other format
        (path / name).unlink(missing_ok=True)
