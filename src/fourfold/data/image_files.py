"""Images in local files: class folders, the IDX files of MNIST, Parquet as `datasets` writes it."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from fourfold.core.errors import InputError
from fourfold.data.image_sets import ArrayImages, ColumnImages, FileImages

ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}
IN_MEMORY = 2 << 30
"""Bytes up to which data are held in memory without being asked."""


def image_folder(folder: Path, class_names: list[str] | None = None) -> FileImages:
    """A folder with a subfolder for each class.

    Args:
        folder: of the split.
        class_names: of the training split; None takes the subfolders in alphabetical order.

    Raises:
        InputError: no subfolders, one without images, or one that is none of `class_names`.
    """
    classes = {p.name: p for p in sorted(folder.iterdir()) if p.is_dir() and not _is_hidden(p.name)}
    names = sorted(classes) if class_names is None else class_names
    if not classes:
        raise InputError(f"{folder} has no folders of images, one for each class.")
    if unknown := sorted(set(classes) - set(names)):
        raise InputError(f"{folder / unknown[0]} is none of the {len(names)} training classes.")
    files, labels = [], []
    for name, path in classes.items():
        found = sorted(
            p
            for p in path.rglob("*")
            if p.suffix.lower() in ENDINGS and not any(map(_is_hidden, p.relative_to(path).parts))
        )
        if not found and class_names is None:
            raise InputError(f"The class folder {path} holds no images.")
        files += found
        labels += [names.index(name)] * len(found)
    return FileImages(files, labels, names, str(folder))


def _is_hidden(name: str) -> bool:
    """Whether it is of a system or an editor, and no image of the user's."""
    return name.startswith(".") or name == "__MACOSX"


def read_idx(images: Path, labels: Path, class_names: list[str] | None = None) -> ArrayImages:
    """Grey images in the two files of MNIST and its successors (LeCun et al. 1998), gzipped or not.

    Raises:
        InputError: not such a file, or cut short.
    """
    array, numbers = _idx_array(images, 3), _idx_array(labels, 1)
    names = class_names or [str(k) for k in range(int(numbers.max(initial=0)) + 1)]
    return ArrayImages(array, numbers, names, str(images))


def _idx_array(path: Path, n_dims: int) -> np.ndarray:
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be unpacked: {error}.") from error
    head = 4 + 4 * n_dims
    if len(data) < head or data[:4] != bytes([0, 0, 8, n_dims]):
        raise InputError(f"{path} is not an IDX file of {n_dims}-dimensional bytes.")
    shape = np.frombuffer(data, ">u4", n_dims, offset=4).astype(np.int64)
    if len(data) - head != shape.prod():
        raise InputError(
            f"{path} announces {shape.prod()} bytes of data but holds {len(data) - head}."
        )
    return np.frombuffer(data, np.uint8, offset=head).reshape(shape)


def parquet(
    files: list[Path], image: str, label: str, class_names: list[str] | None = None
) -> ColumnImages:
    """Parquet files with a column of encoded images and one of labels.

    Args:
        files: read as one table.
        image: name of the column of images.
        label: name of the column of labels, numbers or words.
        class_names: used where the files do not name their classes.

    Raises:
        InputError: no Parquet file, or a column is missing or not of the right type.
    """
    try:
        import pyarrow
        from pyarrow.parquet import read_table
    except ImportError as error:
        raise missing("pyarrow", "data") from error
    origin = str(files[0]) if len(files) == 1 else f"{files[0].parent} ({len(files)} files)"
    try:
        if sum(p.stat().st_size for p in files) <= IN_MEMORY:
            table = pyarrow.concat_tables([read_table(p) for p in files])
        else:  # as a memory-mapped copy, which is read from disk row by row
            table = import_datasets().Dataset.from_parquet([str(p) for p in files]).data.table
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).split("\n")[0].rstrip(".")
        raise InputError(f"{origin} is not a readable Parquet file: {reason}.") from error
    return from_table(table, image, label, origin, class_names)


def from_table(
    table: Any, image: str, label: str, origin: str, class_names: list[str] | None = None
) -> ColumnImages:
    """The images of an Arrow table; see `parquet`."""
    for column in (image, label):
        if column not in table.column_names:
            raise InputError(f"{origin} has no column {column!r}, only {table.column_names}.")
    images, labels = table[image], table[label].to_pylist()
    if not {"bytes", "path"} <= {field.name for field in getattr(images.type, "fields", [])}:
        raise InputError(f"Column {image!r} of {origin} does not hold encoded images.")
    if None in labels:
        raise InputError(f"{origin}, row {labels.index(None)} has no label.")
    notes = json.loads((table.schema.metadata or {}).get(b"huggingface", "{}"))
    names = notes.get("info", {}).get("features", {}).get(label, {}).get("names") or class_names
    if any(isinstance(value, str) for value in labels):
        names = names or sorted(set(labels))
        numbers = {name: k for k, name in enumerate(names)}
        if strange := [(row, value) for row, value in enumerate(labels) if value not in numbers]:
            row, value = strange[0]
            raise InputError(f"{origin}, row {row} has label {value!r}, which is no class.")
        labels = [numbers[value] for value in labels]
    elif any(not isinstance(value, int) for value in labels):
        raise InputError(f"Column {label!r} of {origin} holds neither class numbers nor names.")
    names = names or [str(k) for k in range(max(labels, default=-1) + 1)]
    return ColumnImages(images, labels, names, origin)


def import_datasets() -> Any:
    """The `datasets` library.

    Raises:
        InputError: it is not installed.
    """
    try:
        import datasets
    except ImportError as error:
        raise missing("datasets", "data") from error
    return datasets


def missing(package: str, extra: str) -> InputError:
    """The error that says how to install a package."""
    return InputError(f"These images need {package}: pip install -e '.[{extra}]'.")
