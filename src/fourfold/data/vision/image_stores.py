"""Image stores: labelled images of a split, their decoding and their stratified split.

Shapes: N images, C channels, H height, W width.
"""

import copy
import functools
import hashlib
import io
import os
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fourfold.errors import InputError

PIL_MODES = {1: "L", 3: "RGB"}  # number of channels to mode of Pillow


class UnreadableImage(InputError):
    """An image that cannot be decoded.

    A DataLoader builds the exception of a worker process anew, with the printed traceback as its
    message. The constructor keeps only the original message of such a traceback, so that messages
    are the same with and without workers.
    """

    def __init__(self, message: str, *, file: str | None = None) -> None:
        _, is_traceback, text = message.rpartition(f"{type(self).__name__}: ")
        if is_traceback:
            file, _, message = text.strip().partition(": ")
        super().__init__(message, file=file)


def decode(image: bytes | str | Path | Image.Image, n_channels: int, location: str) -> Tensor:
    """Decode an image to grayscale or RGB pixels; transparency is dropped.

    As in torchvision and timm, the EXIF orientation is ignored. `datasets` and the pipelines of
    transformers apply it.

    Args:
        image: Encoded bytes, the path of a file, or an opened image.
        n_channels: 1 or 3.
        location: Location of the image, for error messages.

    Returns:
        (C, H, W) uint8.

    Raises:
        UnreadableImage: The file does not exist, is not an image, or is incomplete.
    """
    try:
        if not isinstance(image, Image.Image):
            image = Image.open(io.BytesIO(image) if isinstance(image, bytes) else image)
        pixels = np.array(_convert(image, PIL_MODES[n_channels]))
    except FileNotFoundError as error:
        raise UnreadableImage("there is no such image file", file=location) from error
    except Exception as error:  # Pillow's decoders raise many types
        described = getattr(error, "strerror", None) or str(error)
        reason = " ".join(described.split()) or type(error).__name__
        if isinstance(error, Image.UnidentifiedImageError):
            reason = "it is not in an image format"
        raise UnreadableImage(f"the image cannot be read: {reason}", file=location) from error
    tensor = torch.from_numpy(pixels)
    return tensor[None] if n_channels == 1 else tensor.permute(2, 0, 1).contiguous()


def _convert(image: Image.Image, mode: str) -> Image.Image:
    if image.mode.startswith("I;16"):  # Pillow would clip 16-bit values instead of scaling them
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"pixels of mode {image.mode} have no fixed range to scale from")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # otherwise Pillow warns
    return image.convert(mode)  # reads all pixels, which detects incomplete files


Labels = Sequence[int] | np.ndarray | Tensor


class UnlabelledImages(InputError):
    """All labels are -1, as in test splits whose labels are not published."""


class ImageStore:
    """N labelled images of one split; each image is decoded when it is requested.

    This class stores opened images. Subclasses store files, members of an archive, Arrow columns
    or the items of a dataset.

    Args:
        images: N images, in the form of the subclass.
        labels: N class numbers.
        class_names: K names of classes.
        origin: File, folder or dataset, for error messages.
        n_channels: Number of channels of the stored images.

    Raises:
        InputError: There are no images, the numbers of images and labels differ, or a label is not
            a class number.
    """

    def __init__(
        self, images: Any, labels: Labels, class_names: list[str], origin: str, n_channels: int = 3
    ) -> None:
        self.images = images
        self.labels = torch.as_tensor(np.asarray(labels, dtype=np.int64))
        self.class_names = class_names
        self.origin = origin
        self.n_channels = n_channels
        self.rows = np.arange(len(self.labels))  # index in `images` of each image
        if len(images) != len(self):
            message = f"there are {len(images)} images, but {len(self)} labels"
            raise InputError(message, file=origin)
        if not len(self):
            raise InputError("there are no images", file=origin)
        if (self.labels == -1).all():
            raise UnlabelledImages("there are no labels, all of them are -1", file=origin)
        invalid = (self.labels < 0) | (self.labels >= len(class_names))
        if invalid.any():
            row = int(invalid.nonzero()[0])
            message = f"the label must be a class from 0 to {len(class_names) - 1}"
            raise InputError(f"{message}, got {int(self.labels[row])}", file=self.location(row))

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, rows: np.ndarray) -> "ImageStore":
        """Return the images with the given row numbers, numbered from 0."""
        chosen = copy.copy(self)
        chosen.rows = self.rows[rows]
        chosen.labels = self.labels[torch.from_numpy(rows)]
        return chosen

    def location(self, row: int) -> str:
        """Return the location of an image, for error messages."""
        return f"{self.origin}, row {self.rows[row]}"

    def encoded(self, row: int) -> bytes | Path | Image.Image:
        """Return an image as encoded bytes, as the path of a file, or opened."""
        return self.images[self.rows[row]]

    def pixels(self, row: int, n_channels: int) -> Tensor:
        """Return an image as (C, H, W) uint8.

        Raises:
            UnreadableImage: The image cannot be decoded.
        """
        return decode(self.encoded(row), n_channels, self.location(row))

    def quick_hash(self, row: int) -> int:
        """Return a number that is equal for identical images, and computed faster than `digest`."""
        return 0

    def digest(self, row: int) -> bytes:
        """Return a hash of the content, equal for identical images only."""
        image = self.encoded(row)
        if isinstance(image, Image.Image):
            content = repr((image.mode, image.size)).encode() + image.tobytes()
        else:
            content = image.read_bytes() if isinstance(image, Path) else image
        return hashlib.blake2b(content, digest_size=16).digest()


class FileStore(ImageStore):
    """Images in files of their own; `images` are the paths."""

    def location(self, row: int) -> str:
        return str(self.images[self.rows[row]])

    def quick_hash(self, row: int) -> int:
        """Return the size in bytes: files of a unique size are never read to find copies."""
        return self.images[self.rows[row]].stat().st_size


class ZipStore(ImageStore):
    """Images in the zip archive `origin`; `images` are the names of its members."""

    def location(self, row: int) -> str:
        return f"{self.origin}/{self.images[self.rows[row]]}"

    def encoded(self, row: int) -> bytes:
        return open_zip(self.origin, os.getpid()).read(self.images[self.rows[row]])


@functools.lru_cache(maxsize=8)
def open_zip(archive: str, process: int) -> zipfile.ZipFile:
    """Open an archive once in each process, since forked processes would share its file offset.

    Raises:
        InputError: The archive cannot be read.
    """
    try:
        return zipfile.ZipFile(archive)
    except (zipfile.BadZipFile, OSError) as error:
        raise InputError(f"the archive cannot be read: {error}", file=archive) from error


class ColumnStore(ImageStore):
    """Encoded images in an Arrow column of {bytes, path}, the storage of `datasets.Image`."""

    def encoded(self, row: int) -> bytes | Path:
        cell = self.images[int(self.rows[row])].as_py() or {}
        if cell.get("bytes") is not None:
            return cell["bytes"]
        if cell.get("path"):
            return Path(cell["path"])
        raise UnreadableImage("the image has neither bytes nor a path", file=self.location(row))


class DatasetStore(ImageStore):
    """Images of a map-style dataset whose items start with an opened image, as torchvision's do."""

    def encoded(self, row: int) -> Image.Image:
        return self.images[int(self.rows[row])][0]


def stratified_split(
    images: ImageStore, fraction: float, seed: int
) -> tuple[ImageStore, ImageStore]:
    """Split a store in two, with equal shares of each class and no image on both sides.

    Identical images, which collected photographs often contain, stay on one side even if their
    labels differ. Libraries that split by row leak such images into the held-out side.

    Args:
        images: Store to split.
        fraction: Share of each class in the second store.
        seed: Seed of the choice.

    Returns:
        The first and the second store, each with its rows in their old order.

    Raises:
        InputError: The fraction is not between 0 and 1, or a side would be empty.
    """
    if not 0 < fraction < 1:
        message = f"the share to hold out must be between 0 and 1, got {fraction}"
        raise InputError(message, file=images.origin)
    quick_hashes = [images.quick_hash(row) for row in range(len(images))]
    n_equal = Counter(quick_hashes)
    copies: dict[tuple[int, bytes], list[int]] = {}
    for row, quick_hash in enumerate(quick_hashes):
        digest = images.digest(row) if n_equal[quick_hash] > 1 else b""
        copies.setdefault((quick_hash, digest), []).append(row)
    by_class: dict[int, list[list[int]]] = {}
    for rows in copies.values():
        by_class.setdefault(int(images.labels[rows[0]]), []).append(rows)
    rng = np.random.default_rng(seed)
    held_out = np.zeros(len(images), dtype=bool)
    for label in sorted(by_class):
        groups = by_class[label]
        missing = round(fraction * sum(len(rows) for rows in groups))
        for k in rng.permutation(len(groups))[1:]:  # one image of each class is never held out
            if missing <= 0:
                break
            held_out[groups[k]] = True
            missing -= len(groups[k])
    if not held_out.any():
        message = f"{len(images)} images are too few to hold out a share of {fraction}"
        raise InputError(f"{message} of each class", file=images.origin)
    return images.subset(np.flatnonzero(~held_out)), images.subset(np.flatnonzero(held_out))
