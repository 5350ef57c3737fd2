"""`open_source`: image datasets from files, torchvision, `datasets` or scikit-learn's digits.

Labels are read at once; images are decoded when they are requested.
"""

import inspect
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fourfold.data.readers.labels import encode_labels
from fourfold.data.readers.text_table import TextTable
from fourfold.data.vision.image_stores import (
    ColumnStore,
    DatasetStore,
    FileStore,
    ImageStore,
    UnlabelledImages,
    stratified_split,
)
from fourfold.errors import InputError
from fourfold.text_files import resolve

log = logging.getLogger(__name__)

SPLIT_NAMES = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}

Splits = dict[str, ImageStore]


def digits() -> Splits:
    """Return scikit-learn's 1797 grayscale digits of 8x8 pixels in three fixed splits.

    The images are from Alpaydin and Kaynak 1998, "Optical Recognition of Handwritten Digits".
    """
    with _loading("digits"):
        from sklearn.datasets import load_digits
    data = load_digits()
    array = np.round(data.images * (255 / 16)).astype(np.uint8)  # stored as 0 to 16
    names = [str(name) for name in data.target_names]
    images = [Image.fromarray(pixels) for pixels in array]
    complete = ImageStore(images, data.target, names, "digits", n_channels=1)
    rest, test = stratified_split(complete, 0.2, seed=0)
    train, val = stratified_split(rest, 0.125, seed=0)
    return {"train": train, "val": val, "test": test}


def open_source(source: str, image_column: str, label_column: str, download: bool) -> Splits:
    """Open the splits of an image classification dataset.

    Args:
        source: "digits", "torchvision:NAME" (such as "torchvision:CIFAR10"), "datasets:NAME" or
            "datasets:NAME:CONFIGURATION" (Hugging Face), or the path of a Parquet file, of a folder
            with Parquet files, or of a folder with class folders. A relative path may also lie
            under $FOURFOLD_DATA.
        image_column: Name of the image column of Parquet files and of datasets of `datasets`.
        label_column: Name of the label column of Parquet files and of datasets of `datasets`.
        download: Let torchvision download a missing dataset to $FOURFOLD_DATA.

    Returns:
        Store of each split, by name: "train", and "val" and "test" if the source has these splits.

    Raises:
        InputError: The source does not exist, is empty or cannot be read.
    """
    library, _, name = source.partition(":")
    if source == "digits":
        return digits()
    if library == "torchvision" and name:
        return _from_torchvision(name, download)
    columns = (image_column, label_column)
    if library == "datasets" and name:
        with _loading(source):
            loaded = _import_datasets().load_dataset(*name.split(":"))
        return _from_datasets(loaded, source, columns)
    path = resolve(source)
    if loaded := _read_parquet(path):
        return _from_datasets(loaded, str(path), columns)
    folders = {
        split: next((path / name for name in names if (path / name).is_dir()), None)
        for split, names in SPLIT_NAMES.items()
    }
    return _open_each(folders if any(folders.values()) else {"train": path}, _class_folders)


def _open_each(
    sources: Mapping[str, Any], open_split: Callable[[Any, list[str] | None], ImageStore]
) -> Splits:
    """Open several splits, and check that all have the classes of the training split.

    A test split without labels, such as ImageNet's, is skipped with a warning.

    Args:
        sources: Source of each split, by name, with "train" first; None means that there is no such
            split.
        open_split: Function that opens the source of one split. Its second argument is the list of
            the training split's class names, or None for the training split itself.

    Raises:
        InputError: There is no training split, or a split has other classes than that split.
    """
    splits: Splits = {}
    for split, source in sources.items():
        if source is None:
            continue
        names = splits["train"].class_names if splits else None
        try:
            images = open_split(source, names)
        except UnlabelledImages as error:
            if split != "test":
                raise
            log.warning("%s; the test split is skipped", error)
            continue
        if split != "train" and not names:
            message = f"there are {split} images, but no training images"
            raise InputError(message, file=images.origin)
        if names and images.class_names != names:
            message = f"the classes must be those of {splits['train'].origin}, {names}"
            raise InputError(f"{message}, got {images.class_names}", file=images.origin)
        splits[split] = images
    return splits


@contextmanager
def _loading(origin: str) -> Iterator[None]:
    """Context that turns errors of libraries, while they load dataset `origin`, into InputError."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # networks, mirrors and archives fail with many types
        reason = " ".join(str(error.__cause__ or error).split()).rstrip(".")
        message = f"the dataset cannot be loaded: {reason}"
        if isinstance(error, ModuleNotFoundError):
            extra = "data" if error.name == "datasets" else "demo"
            message = f"these images need {error.name}: pip install 'fourfold[{extra}]'"
        raise InputError(message, file=origin) from error


# Folders with a subfolder for each class.


def _class_folders(folder: Path, class_names: list[str] | None) -> FileStore:
    """Open a folder that holds a subfolder of images for each class.

    Args:
        folder: Folder with the subfolders.
        class_names: Names of the classes in the order of their numbers; None means the names of all
            subfolders in alphabetical order.
    """
    from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

    def is_image(file: str) -> bool:
        names = Path(file).relative_to(folder).parts
        return file.lower().endswith(IMG_EXTENSIONS) and not any(map(_is_hidden, names))

    subfolders = sorted(p.name for p in folder.iterdir() if p.is_dir() and not _is_hidden(p.name))
    if not subfolders:
        raise InputError("there are no class folders with images", file=folder)
    names = subfolders if class_names is None else class_names
    if unknown := sorted(set(subfolders) - set(names)):
        message = f"the folder must be one of the {len(names)} training classes"
        raise InputError(message, file=folder / unknown[0])
    numbers = {name: number for number, name in enumerate(names)}
    samples = make_dataset(str(folder), numbers, is_valid_file=is_image, allow_empty=True)
    files = [Path(file) for file, _ in samples]
    return FileStore(files, [label for _, label in samples], names, str(folder))


def _is_hidden(name: str) -> bool:
    """Return True if `name` is a hidden file or folder, such as systems and editors create."""
    return name.startswith(".") or name == "__MACOSX"


# Parquet files and datasets of the Hugging Face hub.


def _read_parquet(path: Path) -> dict[str, Any]:
    """Load a dataset of `datasets` for each split that has Parquet files.

    Splits are loaded one by one, since a common schema would hide that their class names differ.

    Args:
        path: A Parquet file, which becomes the training split, or a folder with files such as
            train.parquet or data/train-00000-of-00002.parquet.

    Returns:
        Dataset of each split, by name; empty if there are no such files.
    """
    loaded = {}
    for split, names in SPLIT_NAMES.items():
        patterns = [f"{name}{rest}.parquet" for name in names for rest in ("", "-*")]
        found = {p for f in (path, path / "data") for pattern in patterns for p in f.glob(pattern)}
        if path.is_file() and split == "train":
            found = {path}
        if found:
            files = [str(file) for file in sorted(found)]
            with _loading(files[0]):
                loaded[split] = _import_datasets().Dataset.from_parquet(files)
    return loaded


def _import_datasets() -> Any:
    import datasets

    datasets.disable_progress_bars()
    return datasets


def _from_datasets(loaded: Mapping[str, Any], origin: str, columns: tuple[str, str]) -> Splits:
    names = {
        split: next((name for name in names if name in loaded), None)
        for split, names in SPLIT_NAMES.items()
    }

    def open_split(name: str, class_names: list[str] | None) -> ImageStore:
        location = f"{origin}, split {name}" if len(loaded) > 1 else origin
        return _column_store(loaded[name], *columns, location, class_names)

    return _open_each(names, open_split)


def _column_store(
    dataset: Any, image: str, label: str, origin: str, class_names: list[str] | None
) -> ColumnStore:
    for option, column in (("data.image_column", image), ("data.label_column", label)):
        if column not in dataset.column_names:
            message = f"must be a column of {origin} ({', '.join(dataset.column_names)})"
            raise InputError(f"{message}, got {column}", option=option)
    table = dataset.data.table
    images, labels = table[image], table[label].to_pylist()
    if not {"bytes", "path"} <= {field.name for field in getattr(images.type, "fields", [])}:
        raise InputError(f"the column {image} must hold encoded images", file=origin)
    if None in labels:
        raise InputError("there is no label", file=f"{origin}, row {labels.index(None)}")
    names = getattr(dataset.features[label], "names", None) or class_names
    if all(isinstance(value, str) for value in labels):
        names = names or sorted(set(labels))
        rows = TextTable.from_columns([labels], f"{origin}, row ", 0)
        labels = encode_labels(labels, rows, names)
    elif not all(isinstance(value, int) for value in labels):
        raise InputError(f"the column {label} must hold class numbers or names", file=origin)
    names = names or [str(number) for number in range(max(labels, default=-1) + 1)]
    return ColumnStore(images, labels, names, origin)


# torchvision.


def _from_torchvision(name: str, download: bool) -> Splits:
    from torchvision import datasets

    dataset_class = getattr(datasets, name, None)
    if not isinstance(dataset_class, type):
        message = f"must name a dataset of torchvision, got torchvision:{name}"
        raise InputError(message, option="data.source")
    parameters = inspect.signature(dataset_class).parameters
    options: dict[str, Any] = {"download": download} if "download" in parameters else {}
    root = os.environ.get("FOURFOLD_DATA", ".")
    loaded = {}
    for split in ("train", "test") if "train" in parameters else SPLIT_NAMES:
        origin = f"torchvision:{name}, split {split}"
        options |= {"train": split == "train"} if "train" in parameters else {"split": split}
        try:
            with _loading(origin):
                loaded[split] = (dataset_class(root, **options), origin)
        except InputError as error:
            # A ValueError means that the dataset has no split of this name.
            if split == "train" or not isinstance(error.__cause__, ValueError):
                raise
    return _open_each(loaded, _torchvision_store)


def _torchvision_store(source: tuple[Any, str], class_names: list[str] | None) -> DatasetStore:
    dataset, origin = source
    attributes = (getattr(dataset, name, None) for name in ("targets", "_labels", "labels"))
    labels = next((values for values in attributes if values is not None), None)
    if labels is None:
        labels = [item[1] for item in dataset]
    names = getattr(dataset, "classes", None) or class_names
    names = names or [str(number) for number in range(int(max(labels)) + 1)]
    # ImageNet's classes have several names each.
    names = [name if isinstance(name, str) else ", ".join(name) for name in names]
    return DatasetStore(dataset, labels, names, origin)
