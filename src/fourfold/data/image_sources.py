"""Where images come from: the digits of scikit-learn, local files, or a data set known by name.

`open_source` reads names and labels only; images are decoded later.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fourfold.core.errors import InputError
from fourfold.data.image_files import (
    from_table,
    image_folder,
    import_datasets,
    missing,
    parquet,
    read_idx,
)
from fourfold.data.image_sets import ArrayImages, Images, OpenedImages, UnlabelledImages, cut
from fourfold.data.sources import resolve

log = logging.getLogger(__name__)

SPLIT_NAMES = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev"),
    "test": ("test", "testing"),
}
IDX_NAMES = {"train": "train", "test": "t10k"}

Splits = dict[str, Images]


def digits() -> Splits:
    """1797 handwritten digits, 8x8 grey (Alpaydin and Kaynak 1998), in three fixed parts."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise missing("scikit-learn", "demo") from error
    data = load_digits()
    array = np.round(data.images * (255 / 16)).astype(np.uint8)  # stored as 0 to 16
    names = [str(name) for name in data.target_names]
    rest, test = cut(ArrayImages(array, data.target, names, "digits"), 0.2, seed=0)
    train, val = cut(rest, 0.125, seed=0)
    return {"train": train, "val": val, "test": test}


def open_source(source: str, image: str, label: str, download: bool) -> Splits:
    """Opens the splits that a source has.

    Args:
        source: "digits", "torchvision:CIFAR10", "datasets:name", "datasets:name:configuration", or
            a path, which may also lie under $FOURFOLD_DATA.
        image: column of the images, where there are columns.
        label: column of the labels.
        download: whether torchvision may fetch what is missing.

    Returns:
        "train", and "val" and "test" if there are any.

    Raises:
        InputError: nothing there, nothing in it, or not what it should be.
    """
    kind, _, name = source.partition(":")
    if source == "digits":
        return digits()
    if kind == "torchvision" and name:
        return _from_torchvision(name, os.environ.get("FOURFOLD_DATA", "."), download)
    if kind == "datasets" and name:
        return _from_datasets(name, image, label)
    path = resolve(source)
    if path.is_dir():
        return _from_folder(path, image, label)
    return {"train": parquet([path], image, label)}


def _from_folder(folder: Path, image: str, label: str) -> Splits:
    tables = {split: _parquet_files(folder, split) for split in SPLIT_NAMES}
    if any(tables.values()):
        return _open_each(tables, lambda files, names: parquet(files, image, label, names))
    arrays = {split: _idx_files(folder, split) for split in IDX_NAMES}
    if any(arrays.values()):
        return _open_each(arrays, lambda files, names: read_idx(files[0], files[1], names))
    parts = {split: _subfolder(folder, split) for split in SPLIT_NAMES}
    if any(parts.values()):
        return _open_each(parts, image_folder)
    return {"train": image_folder(folder)}


def _open_each(
    places: Mapping[str, Any], open_one: Callable[[Any, list[str] | None], Images]
) -> Splits:
    """Opens the splits there are, the training split first: its classes hold for all.

    A test split whose labels are a secret (ImageNet's) is left out, which is said.
    """
    splits: Splits = {}
    for split, place in places.items():
        if not place:
            continue
        names = splits["train"].class_names if splits else None
        try:
            images = open_one(place, names)
        except UnlabelledImages as error:
            if split != "test":
                raise
            log.warning("%s It is left out.", error)
            continue
        splits[split] = images
        if split != "train" and not names:
            raise InputError(
                f"There are {split} images, but no training images, at {images.origin}."
            )
        if names and images.class_names != names:
            raise InputError(
                f"{images.origin} does not have the classes of {splits['train'].origin}:"
                f" {images.class_names} against {names}."
            )
    return splits


def _parquet_files(folder: Path, split: str) -> list[Path]:
    patterns = [f"{name}{rest}.parquet" for name in SPLIT_NAMES[split] for rest in ("", "-*")]
    return sorted({p for f in (folder, folder / "data") for g in patterns for p in f.glob(g)})


def _idx_files(folder: Path, split: str) -> tuple[Path, Path] | None:
    stems = [f"{IDX_NAMES[split]}-{kind}-ubyte" for kind in ("images-idx3", "labels-idx1")]
    found = [
        next((p for end in (".gz", "") if (p := folder / f"{stem}{end}").is_file()), None)
        for stem in stems
    ]
    if any(found) and not all(found):
        raise InputError(f"{folder} has only one of the two files {stems[0]} and {stems[1]}.")
    return (found[0], found[1]) if found[0] and found[1] else None


def _subfolder(folder: Path, split: str) -> Path | None:
    return next((p for name in SPLIT_NAMES[split] if (p := folder / name).is_dir()), None)


def _from_datasets(name: str, image: str, label: str) -> Splits:
    datasets = import_datasets()
    loaded = _loaded(f"datasets:{name}", lambda: datasets.load_dataset(*name.split(":")))
    places = {
        split: next((n for n in names if n in loaded), None) for split, names in SPLIT_NAMES.items()
    }

    def open_one(split: str, class_names: list[str] | None) -> Images:
        table = loaded[split].data.table
        notes = {"info": {"features": loaded[split].features.to_dict()}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(notes)})
        return from_table(table, image, label, f"datasets:{name} {split}", class_names)

    return _open_each(places, open_one)


def _from_torchvision(name: str, root: str, download: bool) -> Splits:
    from torchvision import datasets

    kind = getattr(datasets, name, None)
    if not isinstance(kind, type):
        raise InputError(f"torchvision has no data set {name!r}.")
    parameters = inspect.signature(kind).parameters
    options: dict[str, Any] = {"download": download} if "download" in parameters else {}
    if "train" in parameters:
        choices: dict[str, dict[str, Any]] = {"train": {"train": True}, "test": {"train": False}}
    else:
        choices = {split: {"split": split} for split in SPLIT_NAMES}
    places = {}
    for split, choice in choices.items():
        try:
            places[split] = _loaded(
                f"torchvision:{name} {split}", partial(kind, root, **choice, **options)
            )
        except InputError as error:
            # ValueError: the data set has no split of this name.
            if split == "train" or not isinstance(error.__cause__, ValueError):
                raise
    origins = {id(items): f"torchvision:{name} {split}" for split, items in places.items()}
    return _open_each(places, lambda items, names: _opened(items, names, origins[id(items)]))


def _opened(items: Any, class_names: list[str] | None, origin: str) -> OpenedImages:
    fields = (getattr(items, field, None) for field in ("targets", "_labels", "labels"))
    labels = next((field for field in fields if field is not None), None)
    if labels is None:
        labels = [item[1] for item in items]
    names = getattr(items, "classes", None) or class_names
    names = names or [str(k) for k in range(int(max(labels)) + 1)]
    # ImageNet's classes have several names each.
    names = [name if isinstance(name, str) else ", ".join(name) for name in names]
    return OpenedImages(items, labels, names, origin)


def _loaded(what: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except Exception as error:  # whatever a network, a mirror or an archive can do wrong
        reason = " ".join(str(error).split()).rstrip(".")
        raise InputError(f"{what} cannot be loaded: {reason}.") from error
