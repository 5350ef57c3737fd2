"""Stores of labelled images (ImageStore and subclasses), and functions to decode and split them.

Shapes: N images, C channels, H height, W width.
"""

import copy
import functools
import hashlib
import io
import os
import zipfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from PIL import Image
from torch import Tensor

from fourfold.core.validation import check_choice, check_range
from fourfold.errors import InputError

PIL_MODES = {1: "L", 3: "RGB"}  # mode of Pillow for each number of channels


class UnreadableImage(InputError):
    """Error for an image that cannot be decoded.

    If the error is raised in a worker process of a DataLoader, torch calls the constructor again in
    the main process, with the printed traceback as the message. The constructor keeps only the
    original message of such a traceback.
    """

    def __init__(self, message: str, *, file: str | None = None) -> None:
        _, is_traceback, text = message.rpartition(f"{type(self).__name__}: ")
        if is_traceback:
            file, _, message = text.strip().partition(": ")
        super().__init__(message, file=file)


def decode(image: bytes | str | Path | Image.Image, n_channels: int, location: str) -> Tensor:
    """Decode an image to grayscale or RGB pixels (C, H, W) uint8; transparency is dropped.

    As in torchvision and timm, the EXIF orientation is ignored. `datasets` and the pipelines of
    transformers apply it.

    Args:
        image: Encoded bytes, the path of a file, or an opened Pillow image.
        n_channels: Number of channels C: 1 for grayscale, 3 for RGB, 0 for the stored numbers.
        location: Location of the image, for error messages.

    Raises:
        UnreadableImage: The file does not exist, is not an image, is incomplete, or is PostScript,
            which Pillow passes to another program.
    """
    try:
        if not isinstance(image, Image.Image):
            image = Image.open(io.BytesIO(image) if isinstance(image, bytes) else image)
            if image.format == "EPS":
                raise ValueError("PostScript is not supported")
        pixels = np.array(_convert(image, PIL_MODES[n_channels]) if n_channels else image)
    except Exception as error:  # Pillow's decoders raise many types
        described = getattr(error, "strerror", None) or str(error)
        reason = " ".join(described.split()) or type(error).__name__
        if isinstance(error, Image.UnidentifiedImageError):
            reason = "it is not in an image format"
        raise UnreadableImage(f"the image cannot be read: {reason}", file=location) from error
    return torch.from_numpy(np.atleast_3d(pixels)).permute(2, 0, 1).contiguous()


def _convert(image: Image.Image, mode: str) -> Image.Image:
    if image.mode.startswith("I;16"):  # Pillow would clip 16-bit values instead of scaling them
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"pixels of mode {image.mode} have no fixed range to scale from")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # otherwise Pillow warns
    return image.convert(mode)  # reads all pixels, which detects incomplete files


class ImageStore:
    """N labelled images of one split, each of which is decoded when it is requested.

    This class stores opened Pillow images. Subclasses store paths of files, names of members of an
    archive, or an Arrow column.

    Args:
        images: Sequence of N images, in the form that the class or subclass stores.
        labels: (N,) class index of each image; or as floats a number (N,) of each image, or 1 for
            each label that an image has and 0 for the others (N, K).
        class_names: Names of the K classes; None means the numbers from 0 to the largest label.
            Empty if `labels` are numbers.
        origin: File, folder or dataset from which the images come, for error messages.

    Attributes:
        n_channels: Default number of channels of the model input.

    Raises:
        InputError: There are no images, or a label is not the index of a class.
    """

    n_channels = 3

    def __init__(
        self, images: Any, labels: ArrayLike, class_names: list[str] | None, origin: str
    ) -> None:
        self.images = images
        values = torch.as_tensor(np.asarray(labels))
        self.labels = values.float() if values.is_floating_point() else values.long()
        self.origin = origin
        self.rows = np.arange(len(self.labels))  # index in `images` of each image
        if not len(self):
            raise InputError("there are no images", file=origin)
        n_classes = 0 if self.labels.is_floating_point() else int(self.labels.max()) + 1
        self.class_names = class_names or [str(n) for n in range(n_classes)]
        invalid = (self.labels < 0) | (self.labels >= len(self.class_names))
        if self.class_names and invalid.any():
            row = int(invalid.nonzero()[0])
            message = f"the label must be a class from 0 to {len(self.class_names) - 1}"
            raise InputError(f"{message}, got {int(self.labels[row])}", file=self.location(row))

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, rows: np.ndarray) -> "ImageStore":
        """Return a store of the images with the indices `rows`, in this order."""
        chosen = copy.copy(self)
        chosen.rows = self.rows[rows]
        chosen.labels = self.labels[torch.from_numpy(rows)]
        return chosen

    def with_classes(self, names: list[str]) -> "ImageStore":
        """Return a store of the images of some classes, which are numbered in the order of `names`.

        Raises:
            InputError: A name is not that of a class.
        """
        for name in names:
            check_choice("data.classes", name, self.class_names)
        new_labels = np.full(len(self.class_names), -1)
        new_labels[[self.class_names.index(name) for name in names]] = np.arange(len(names))
        labels = new_labels[self.labels.numpy()]
        chosen = self.subset(np.flatnonzero(labels >= 0))
        chosen.labels = torch.from_numpy(labels[labels >= 0])
        chosen.class_names = list(names)
        return chosen

    def location(self, row: int) -> str:
        """Return the location of the image with the index `row`, for error messages."""
        return f"{self.origin}, row {self.rows[row]}"

    def encoded(self, row: int) -> bytes | Path | Image.Image:
        """Return the image with the index `row` as bytes, path of a file or Pillow image."""
        return self.images[self.rows[row]]

    def pixels(self, row: int, n_channels: int) -> Tensor:
        """Decode the image with the index `row`, and return its pixels (C, H, W) uint8."""
        return decode(self.encoded(row), n_channels, self.location(row))

    def digest(self, row: int) -> bytes:
        """Return a 16-byte hash of the encoded image with the index `row`, to find copies of it."""
        image = self.encoded(row)
        if isinstance(image, Image.Image):
            content = repr((image.mode, image.size)).encode() + image.tobytes()
        else:
            content = image.read_bytes() if isinstance(image, Path) else image
        return hashlib.blake2b(content, digest_size=16).digest()


class FileStore(ImageStore):
    """Store of image files. `images` holds their paths relative to the folder `origin`."""

    def location(self, row: int) -> str:
        return f"{self.origin}/{self.images[self.rows[row]]}"

    def encoded(self, row: int) -> bytes | Path:
        return Path(self.location(row))


class ZipStore(FileStore):
    """Store of images in the zip archive `origin`. `images` holds the names of archive members."""

    def encoded(self, row: int) -> bytes:
        return open_zip(self.origin, os.getpid()).read(self.images[self.rows[row]])


@functools.lru_cache(maxsize=8)
def open_zip(archive: str, process: int) -> zipfile.ZipFile:
    """Open a zip archive once in each process, and return the same object in later calls.

    Each forked process opens the archive itself, because all processes that inherit an open file
    share one offset in the file. `process` is the id of the calling process.

    Raises:
        InputError: The archive cannot be read.
    """
    try:
        return zipfile.ZipFile(archive)
    except (zipfile.BadZipFile, OSError) as error:
        raise InputError(f"the archive cannot be read: {error}", file=archive) from error


class ColumnStore(ImageStore):
    """Store of images in an Arrow column. Its cells are structs (bytes, path), as in `datasets`."""

    def encoded(self, row: int) -> bytes | Path:
        cell = self.images[int(self.rows[row])].as_py() or {}
        is_path = cell.get("bytes") is None and cell.get("path")
        return Path(cell["path"]) if is_path else cell.get("bytes") or b""


def stratified_split(images: ImageStore, share: float, seed: int) -> tuple[ImageStore, ImageStore]:
    """Hold out about the same share of each class of a store.

    Images with several labels or a number are sampled as images of one class.
    Identical images, which are frequent in photo collections, are all held out or all kept, even if
    their labels differ. Otherwise the held-out images would contain copies of training images.

    Returns:
        The store of the remaining images and the store of the held-out images, each in the order of
        `images`.

    Raises:
        InputError: `share` is not between 0 and 1, or no image would be held out.
    """
    check_range("the share of images to hold out", share, above=0.0, below=1.0)
    sizes = [0] * len(images)
    if type(images) is FileStore:  # only files of equal size can be identical and need to be read
        sizes = [Path(images.location(row)).stat().st_size for row in range(len(images))]
    n_equal = Counter(sizes)
    copies: dict[tuple[int, bytes], list[int]] = defaultdict(list)
    for row, size in enumerate(sizes):
        digest = images.digest(row) if n_equal[size] > 1 else b""
        copies[size, digest].append(row)
    has_classes = not images.labels.is_floating_point()
    by_class: dict[int, list[list[int]]] = defaultdict(list)
    for rows in copies.values():
        by_class[int(images.labels[rows[0]]) if has_classes else 0].append(rows)
    rng = np.random.default_rng(seed)
    held_out = np.zeros(len(images), dtype=bool)
    for _, groups in sorted(by_class.items()):
        missing = round(share * sum(map(len, groups)))
        for k in rng.permutation(len(groups))[1:]:  # one image of each class is never held out
            if missing <= 0:
                break
            held_out[groups[k]] = True
            missing -= len(groups[k])
    if not held_out.any():
        message = f"{len(images)} images are too few to hold out a share of {share} of each class"
        raise InputError(message, file=images.origin)
    return images.subset(np.flatnonzero(~held_out)), images.subset(np.flatnonzero(held_out))
