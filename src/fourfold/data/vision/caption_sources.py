"""Image caption datasets: a folder or zip archive with JSON lines, or built-in described digits.

`read_captions` reads the texts and checks that the images exist; images are decoded later.
"""

import os
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch

from fourfold.data.readers.text_table import TextTable, get_column, read_json_lines
from fourfold.data.vision.image_stores import FileStore, ImageStore, ZipStore, open_zip
from fourfold.data.vision.sources import SPLIT_NAMES, digits
from fourfold.errors import InputError
from fourfold.text_files import resolve

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
STROKES = ("thin", "plain", "bold")
SLANTS = ("leaning right", "upright", "leaning left")


@dataclass(frozen=True)
class CaptionedImages:
    """Split of N images with one or several captions each.

    Args:
        images: Images, without classes.
        texts: Captions of all images, in the order of the images.
        counts: (N,) number of captions of each image, at least 1.
    """

    images: ImageStore
    texts: TextTable
    counts: np.ndarray


def read_captions(
    source: str, table: str, folder: str, columns: tuple[str, str, str]
) -> dict[str, CaptionedImages]:
    """Read the splits of a folder or zip archive with images and a JSON-lines file.

    Args:
        source: Folder or archive; a relative path may also lie under $FOURFOLD_DATA.
        table: JSON-lines file in the source, with a line for each image.
        folder: Folder of the images in the source; "" for the folder of the file.
        columns: Keys of the image's path, of its split, and of its caption or list of captions.

    Returns:
        "train", and "val" and "test" if the file has them.

    Raises:
        InputError: The source or an image is missing, or a line is invalid.
    """
    root = resolve(source)
    path = f"{source}/{table}"
    is_zip = root.suffix == ".zip"
    members = set(open_zip(str(root), os.getpid()).namelist()) if is_zip else set()
    records: dict[str, list[tuple[str, list[str], int]]] = {}
    for line, record in read_json_lines(path):
        image, split, texts = _parse_record(record, columns, f"{path}:{line}")
        image = f"{folder}/{image}" if folder else image
        if not (image in members if is_zip else (root / image).is_file()):
            raise InputError(f"there is no image {image} in {source}", file=path, line=line)
        records.setdefault(split, []).append((image, texts, line))
    if "train" not in records:
        raise InputError(f"there are no training images, only {', '.join(records)}", file=path)
    splits = {}
    for split, of_split in records.items():
        names, texts_of_images, lines = zip(*of_split, strict=True)
        labels = np.zeros(len(names))
        images: ImageStore
        if is_zip:
            images = ZipStore(names, labels, [""], str(root))
        else:
            images = FileStore([root / name for name in names], labels, [""], source)
        counts = np.array([len(texts) for texts in texts_of_images])
        captions = TextTable.from_columns(
            [list(chain(*texts_of_images))], f"{path}:", np.repeat(lines, counts).tolist()
        )
        splits[split] = CaptionedImages(images, captions, counts)
    return splits


def _parse_record(
    record: Any, columns: tuple[str, str, str], location: str
) -> tuple[str, str, list[str]]:
    """Return the path of the image, the canonical name of its split, and its captions."""
    image = get_column(record, columns[0], location)
    name = get_column(record, columns[1], location)
    split = next((split for split, names in SPLIT_NAMES.items() if name in names), None)
    if split is None:
        message = f"the split must be one of {', '.join(SPLIT_NAMES)}, got {name!r}"
        raise InputError(message, file=location)
    texts = record.get(columns[2])
    texts = [texts] if isinstance(texts, str) else texts
    is_list = isinstance(texts, list) and texts
    if not is_list or not all(isinstance(text, str) and text.strip() for text in texts):
        message = f"column {columns[2]!r} must be a text or a list of texts, got {texts!r}"
        raise InputError(message, file=location)
    return image, split, texts


def digit_captions() -> dict[str, CaptionedImages]:
    """Return scikit-learn's 1797 digits with three captions that describe number, stroke and slant.

    Stroke and slant are measured from the pixels. A third of the training images each is thin,
    plain and bold, and a third each leans right, is upright and leans left.
    """
    splits = digits()
    measured = {name: _ink_and_slant(images) for name, images in splits.items()}
    terciles = np.quantile(measured["train"], [1 / 3, 2 / 3], axis=0)  # (2, 2)
    captioned = {}
    for name, images in splits.items():
        ink, slant = (np.searchsorted(terciles[:, k], measured[name][:, k]) for k in (0, 1))
        texts = []
        for label, i, j in zip(images.labels.tolist(), ink, slant, strict=True):
            number, stroke, direction = NUMBERS[label], STROKES[i], SLANTS[j]
            texts += [
                f"a {stroke} handwritten {number}, {direction}",
                f"the digit {number} in {stroke} strokes, {direction}",
                f"{direction} and {stroke}: a {number}",
            ]
        counts = np.full(len(images), len(texts) // len(images))
        table = TextTable.from_columns([texts], f"digits, {name}, text ")
        captioned[name] = CaptionedImages(images, table, counts)
    return captioned


def _ink_and_slant(images: ImageStore) -> np.ndarray:
    """Return (N, 2): mean brightness, and the shift to the right of the ink per row downwards."""
    pixels = torch.stack([images.pixels(row, 1)[0] for row in range(len(images))]).double()
    total = pixels.sum((1, 2))
    coordinate = torch.arange(pixels.shape[1], dtype=torch.float64)
    y = coordinate[:, None] - ((pixels.sum(2) @ coordinate) / total)[:, None, None]  # (N, H, 1)
    x = coordinate - ((pixels.sum(1) @ coordinate) / total)[:, None, None]  # (N, 1, W)
    slant = (pixels * x * y).sum((1, 2)) / (pixels * y * y).sum((1, 2))
    return torch.stack([pixels.mean((1, 2)), slant], 1).numpy()
