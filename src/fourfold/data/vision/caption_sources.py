"""Images with texts that say what is on them: from a folder or archive, or made on the spot.

`read_captions` reads the texts and looks whether the images are there; they are decoded later.
"""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fourfold.core.errors import InputError
from fourfold.data.image_sets import FileImages, Images
from fourfold.data.image_sources import SPLIT_NAMES, digits
from fourfold.data.sources import Rows, pick, read_json_lines, resolve

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
STROKES = ("thin", "plain", "bold")
LEANINGS = ("leaning right", "upright", "leaning left")


@dataclass(frozen=True)
class Captioned:
    """A split: N images, each with one text or several.

    Args:
        images: the images; they have no classes.
        texts: all texts, those of one image after those of another.
        counts: (N,) texts of each image, at least 1.
    """

    images: Images
    texts: Rows
    counts: np.ndarray


class _Line(NamedTuple):
    """An image's path from the source, its texts, and where they were read."""

    image: str
    texts: list[str]
    number: int


class ZipImages(Images):
    """Members of an archive, which every process opens for itself."""

    def __init__(self, archive: Path, members: list[str]) -> None:
        self.archive, self.members = archive, members
        self._opened: tuple[int, zipfile.ZipFile] | None = None
        super().__init__(np.zeros(len(members)), [""], str(archive))

    def name(self, row: int) -> str:
        return f"{self.archive}/{self.members[row]}"

    def encoded(self, row: int) -> bytes:
        process = os.getpid()
        if self._opened is None or self._opened[0] != process:  # a fork would share its place
            self._opened = (process, zipfile.ZipFile(self.archive))
        return self._opened[1].read(self.members[row])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}


def read_captions(
    source: str, table: str, folder: str, columns: tuple[str, str, str]
) -> dict[str, Captioned]:
    """The splits of a folder or .zip archive with images and a file of JSON lines.

    Args:
        source: the folder or archive; a relative one may also lie under $FOURFOLD_DATA.
        table: the file in it, a line for each image.
        folder: where the images lie in it; "" for beside the file.
        columns: of the image's name, of its split, of its text or list of texts.

    Returns:
        "train", and "val" and "test" if there are any.

    Raises:
        InputError: there is no such source or image, or a line is broken; names the line.
    """
    place, path = resolve(source), f"{source}/{table}"
    members = _members(place) if place.suffix == ".zip" else None
    found: dict[str, list[_Line]] = {}
    for where, number, record in read_json_lines(path):
        image, split, texts = _read_record(record, columns, where)
        image = f"{folder}/{image}" if folder else image
        there = image in members if members is not None else (place / image).is_file()
        if not there:
            raise InputError(f"{where}: there is no image {image} in {source}.")
        found.setdefault(split, []).append(_Line(image, texts, number))
    if "train" not in found:
        raise InputError(f"{path} has no training images, only {', '.join(found)}.")
    splits = {}
    for split, lines in found.items():
        names, counts = [line.image for line in lines], [len(line.texts) for line in lines]
        images: Images = ZipImages(place, names)
        if members is None:
            images = FileImages(
                [place / name for name in names], np.zeros(len(names)), [""], source
            )
        texts = [text for line in lines for text in line.texts]
        numbers = np.repeat([line.number for line in lines], counts)
        rows = Rows([texts], [f"{path}, line"], np.zeros(len(texts), np.int64), numbers)
        splits[split] = Captioned(images, rows, np.array(counts))
    return splits


def _members(archive: Path) -> set[str]:
    try:
        with zipfile.ZipFile(archive) as opened:
            return set(opened.namelist())
    except (zipfile.BadZipFile, OSError) as error:
        raise InputError(f"{archive} cannot be read: {error}.") from error


def _read_record(
    record: Any, columns: tuple[str, str, str], where: str
) -> tuple[str, str, list[str]]:
    """Name of the image, our name of its split, and its texts."""
    image, said = pick(record, columns[0], where), pick(record, columns[1], where)
    split = next((ours for ours, names in SPLIT_NAMES.items() if said in names), None)
    if split is None:
        raise InputError(f"{where}: the split {said!r} is none of {', '.join(SPLIT_NAMES)}.")
    texts = record.get(columns[2])
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, list) or not all(isinstance(t, str) and t.strip() for t in texts):
        raise InputError(f"{where}: column {columns[2]!r} holds {texts!r}, which is no text.")
    if not texts:
        raise InputError(f"{where}: the image {image} has no text.")
    return image, split, texts


def described_digits() -> dict[str, Captioned]:
    """scikit-learn's 1797 digits, with what they look like in three ways of saying it.

    How thick and how slanted a digit is stands in its pixels; a third of the training images is
    thin, plain and bold, and a third leans right, stands upright and leans left.
    """
    splits = digits()
    looks = {name: _looks(images) for name, images in splits.items()}
    borders = np.quantile(looks["train"], [1 / 3, 2 / 3], axis=0)  # (2, 2)
    found = {}
    for name, images in splits.items():
        ink, slant = (np.searchsorted(borders[:, k], looks[name][:, k]) for k in (0, 1))
        texts = [
            text
            for label, i, j in zip(images.labels.tolist(), ink, slant, strict=True)
            for text in _say(NUMBERS[label], STROKES[i], LEANINGS[j])
        ]
        counts = np.full(len(images), len(texts) // len(images))
        found[name] = Captioned(images, Rows.of([texts], f"digits {name}, text"), counts)
    return found


def _say(number: str, stroke: str, leaning: str) -> list[str]:
    return [
        f"a {stroke} handwritten {number}, {leaning}",
        f"the digit {number} in {stroke} strokes, {leaning}",
        f"{leaning} and {stroke}: a {number}",
    ]


def _looks(images: Images) -> np.ndarray:
    """(N, 2): mean brightness, and columns that the ink moves to the right a row downwards."""
    pixels = torch.stack([images.pixels(row, 1)[0] for row in range(len(images))]).double()
    total = pixels.sum((1, 2))
    place = torch.arange(pixels.shape[1], dtype=torch.float64)
    y = place[:, None] - ((pixels.sum(2) @ place) / total)[:, None, None]  # (N, H, 1)
    x = place - ((pixels.sum(1) @ place) / total)[:, None, None]  # (N, 1, W)
    slant = (pixels * x * y).sum((1, 2)) / (pixels * y * y).sum((1, 2))
    return torch.stack([pixels.mean((1, 2)), slant], 1).numpy()
