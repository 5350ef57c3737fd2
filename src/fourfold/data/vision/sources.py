"""Readers of image datasets: files, `datasets` and scikit-learn's digits.

Labels are read when the dataset is opened. Each image is decoded when it is requested.
"""

import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from fourfold.core.validation import check_choice
from fourfold.data.readers.hf_datasets import loading
from fourfold.data.readers.labels import check_labels, encode_labels
from fourfold.data.readers.text_table import TextTable, is_table, is_text, read_table
from fourfold.data.vision.image_stores import ColumnStore, FileStore, ImageStore, stratified_split
from fourfold.errors import InputError
from fourfold.text_files import resolve

log = logging.getLogger(__name__)

# Dictionary from the name of a folder, file or Hugging Face split to the split that it stands for.
# If a source has several names for one split, the last of these names is used.
SPLITS = {"training": "train", "train": "train"}
SPLITS |= dict.fromkeys(("dev", "validation", "valid", "val"), "val")
SPLITS |= {"testing": "test", "test": "test"}

Splits = dict[str, ImageStore]


def digits() -> Splits:
    """Return scikit-learn's 1797 grayscale images of digits, divided into three splits.

    The images have 8x8 pixels. They are from Alpaydin and Kaynak 1998, "Optical Recognition of
    Handwritten Digits". About 70 % are in "train", 10 % in "val" and 20 % in "test".
    """
    with loading("digits"):
        from sklearn.datasets import load_digits
    data = load_digits()
    array = np.round(data.images * (255 / 16)).astype(np.uint8)  # stored as 0 to 16
    complete = ImageStore(list(map(Image.fromarray, array)), data.target, None, "digits")
    complete.n_channels = 1
    rest, test = stratified_split(complete, 0.2, seed=0)
    train, val = stratified_split(rest, 0.125, seed=0)
    return {"train": train, "val": val, "test": test}


def open_source(source: str, image_column: str, label_column: str, parse: Any) -> Splits:
    """Open the splits of an image classification dataset; "train" is always a key.

    The first arguments are those of `ImageData`. `parse` returns labels and class names from the
    texts in the label column of a table, the table, and the class names of the training split.

    Raises:
        InputError: The source does not exist, is empty or cannot be read.
    """
    library, _, name = source.partition(":")
    if source == "digits":
        return digits()
    if library == "datasets" and name:
        with loading(source):
            loaded = _import_datasets().load_dataset(*name.split(":"))
        return _from_datasets(loaded, source, image_column, label_column)
    path = resolve(source)
    files = [(split, file) for x, split in SPLITS.items() for file in path.glob(f"{x}.*")]
    tables = {split: file for split, file in files if is_table(file.name)}
    if is_table(source):
        tables = {"train": path}
    if "train" in tables and not any(x.is_dir() for x in path.glob("train/*")):
        read = partial(_read_table, [image_column, label_column], parse)
        return _open_each(str(path), tables, read)
    if loaded := _read_parquet(path):
        return _from_datasets(loaded, str(path), image_column, label_column)
    folders = {split: path / name for name, split in SPLITS.items() if (path / name).is_dir()}
    return _open_each(str(path), folders or {"train": path}, _class_folders)


def _open_each(
    origin: str, sources: Mapping[str, Any], open_split: Callable[..., ImageStore | None]
) -> Splits:
    """Open several splits, and check that all have the classes of the training split.

    `open_split` gets a source and the class names of the training split (None for this split), and
    returns None if the split has no labels, such as ImageNet's test split.
    """
    splits: Splits = {}
    names = None
    for split, source in sources.items():
        images = open_split(source, names)
        if images is None:
            log.warning("%s: the %s split has no labels and is skipped", origin, split)
            continue
        names = images.class_names if names is None else names
        if images.class_names != names:
            message = f"the classes must be those of the training split, {names}"
            raise InputError(f"{message}, got {images.class_names}", file=images.origin)
        splits[split] = images
    if "train" not in splits:
        raise InputError("there are no training images with labels", file=origin)
    return splits


# Tables with the path of a file and a label in each row.


def _read_table(columns: list[str], parse: Any, path: Path, names: list[str] | None) -> FileStore:
    """Open the images of a table, with paths that are absolute or relative to its folder."""
    table = read_table(str(path), columns)
    files = [path.parent / file for file in table.columns[0]]
    if missing := [row for row, file in enumerate(files) if not file.is_file()]:
        raise InputError("there is no such image", file=table.location(missing[0]))
    labels, names = parse(table.columns[1], table, names)
    paths = [os.path.relpath(file, path.parent) for file in files]
    return FileStore(paths, labels, names, str(path.parent))


# Folders with a subfolder for each class.


def _class_folders(folder: Path, class_names: list[str] | None) -> FileStore:
    """Open a folder that holds a subfolder of images for each class.

    Names that begin with "." are ignored, and a subfolder without images, such as __MACOSX, is
    skipped with a warning.
    """
    from torchvision.datasets.folder import IMG_EXTENSIONS, make_dataset

    def is_image(file: str) -> bool:
        parts = Path(file).relative_to(folder).parts
        return file.lower().endswith(IMG_EXTENSIONS) and not any(p.startswith(".") for p in parts)

    found = sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not found:
        raise InputError("there are no class folders with images", file=folder)
    numbers = {name: number for number, name in enumerate(found)}
    samples = make_dataset(str(folder), numbers, is_valid_file=is_image, allow_empty=True)
    filled = [found[number] for number in sorted({number for _, number in samples})]
    if empty := sorted(set(found) - set(filled)):
        log.warning("%s: skipped the folders without images: %s", folder, ", ".join(empty[:20]))
    names = class_names or filled
    if unknown := sorted(set(filled) - set(names)):
        message = f"the folder must be one of the {len(names)} training classes"
        raise InputError(message, file=folder / unknown[0])
    files = [os.path.relpath(file, folder) for file, _ in samples]
    classes = {name: number for number, name in enumerate(names)}
    labels = [classes[found[number]] for _, number in samples]
    return FileStore(files, labels, names, str(folder))


# Parquet files and Hugging Face datasets.


def _read_parquet(path: Path) -> dict[str, Any]:
    """Load a `datasets.Dataset` for each split that has Parquet files.

    A single file is the training split; a folder has files such as
    data/train-00000-of-00002.parquet.
    """
    found = {"train": [path]} if path.is_file() else {}
    for name, split in SPLITS.items():
        pattern = f"{name}[.-]*parquet"
        if files := sorted([*path.glob(pattern), *path.glob(f"data/{pattern}")]):
            found[split] = files
    # Loaded together, all splits would have one schema, and different class names would be hidden.
    loaded = {}
    for split, files in found.items():
        with loading(str(files[0])):
            loaded[split] = _import_datasets().Dataset.from_parquet([str(file) for file in files])
    return loaded


def _import_datasets() -> Any:
    import datasets

    datasets.disable_progress_bars()
    return datasets


def _from_datasets(loaded: Mapping[str, Any], origin: str, image: str, label: str) -> Splits:
    names = {split: name for name, split in SPLITS.items() if name in loaded}

    def open_split(name: str, class_names: list[str] | None) -> ColumnStore | None:
        location = f"{origin}, split {name}" if len(loaded) > 1 else origin
        table = loaded[name].data.table
        check_choice("data.image_column", image, table.column_names)
        check_choice("data.label_column", label, table.column_names)
        images, labels = table[image], table[label].to_pylist()
        if not {"bytes", "path"} <= {field.name for field in getattr(images.type, "fields", [])}:
            raise InputError(f"the column {image} must hold encoded images", file=location)
        if set(labels) == {-1}:
            return None
        known = getattr(loaded[name].features[label], "names", None) or class_names
        if all(isinstance(value, str) for value in labels):
            rows = TextTable.from_columns([labels], f"{location}, row ", 0)
            if not known:
                known = sorted(set(labels))
                check_labels(known, lambda name: rows.location(labels.index(name)))
            labels = encode_labels(labels, rows, known)
        elif not all(isinstance(value, int) for value in labels):
            missing = [row for row, value in enumerate(labels) if not is_text(value)]
            location += f", row {missing[0]}" if missing else ""
            raise InputError(f"the column {label} must hold class numbers or names", file=location)
        return ColumnStore(images, labels, known, location)

    return _open_each(origin, names, open_split)
