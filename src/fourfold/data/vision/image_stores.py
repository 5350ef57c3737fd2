"""Labelled images by row, stored as arrays, Arrow columns or files, and their stratified split.

Shapes: N images, C channels, H height, W width.
"""

import hashlib
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fourfold.data.vision.decoding import UnreadableImage, decode
from fourfold.errors import InputError

Labels = Sequence[int] | np.ndarray | Tensor


class UnlabelledImages(InputError):
    """All labels are -1, as in test splits whose labels are not published."""


class ImageStore(ABC):
    """N images of one split with labels; an image is decoded when it is requested.

    Args:
        labels: N class numbers.
        class_names: K names.
        origin: File, folder or dataset, for error messages.
        n_channels: Number of channels of the stored images.

    Raises:
        InputError: There are no images, or a label is not a class number.
    """

    def __init__(
        self, labels: Labels, class_names: list[str], origin: str, n_channels: int = 3
    ) -> None:
        self.labels = torch.as_tensor(np.asarray(labels, dtype=np.int64))
        self.class_names = class_names
        self.origin = origin
        self.n_channels = n_channels
        if not len(self.labels):
            raise InputError("there are no images", file=origin)
        if (self.labels == -1).all():
            raise UnlabelledImages("there are no labels, all of them are -1", file=origin)
        invalid = (self.labels < 0) | (self.labels >= len(class_names))
        if invalid.any():
            row = int(invalid.nonzero()[0])
            raise InputError(
                f"the label must be a class from 0 to {len(class_names) - 1},"
                f" got {int(self.labels[row])}",
                file=self.location(row),
            )

    def __len__(self) -> int:
        return len(self.labels)

    def location(self, row: int) -> str:
        """Return the location of an image, for error messages."""
        return f"{self.origin}, row {row}"

    @abstractmethod
    def encoded(self, row: int) -> bytes | Path | Image.Image:
        """Return an image as it is stored."""

    def pixels(self, row: int, n_channels: int) -> Tensor:
        """Return an image as (C, H, W) uint8.

        Raises:
            UnreadableImage: The image cannot be decoded.
        """
        return decode(self.encoded(row), n_channels, self.location(row))

    def quick_hash(self, row: int) -> bytes:
        """Return bytes that are equal for identical images, and faster to compute than `digest`."""
        return b""

    def digest(self, row: int) -> bytes:
        """Return a hash of the content, equal for identical images only."""
        image = self.encoded(row)
        if isinstance(image, Image.Image):
            content = repr((image.mode, image.size)).encode() + image.tobytes()
        else:
            content = image.read_bytes() if isinstance(image, Path) else image
        return hashlib.blake2b(content, digest_size=16).digest()


class ArrayStore(ImageStore):
    """Images in a uint8 array, (N, H, W) or (N, H, W, 3)."""

    def __init__(
        self, array: np.ndarray, labels: Labels, class_names: list[str], origin: str
    ) -> None:
        self.array = array
        _check_lengths(len(array), len(labels), origin)
        super().__init__(labels, class_names, origin, n_channels=1 if array.ndim == 3 else 3)

    def encoded(self, row: int) -> Image.Image:
        return Image.fromarray(self.array[row])


class ColumnStore(ImageStore):
    """Encoded images in an Arrow column of {bytes, path}, the storage of `datasets.Image`."""

    def __init__(self, column: Any, labels: Labels, class_names: list[str], origin: str) -> None:
        self.column = column
        super().__init__(labels, class_names, origin)

    def encoded(self, row: int) -> bytes | Path:
        cell = self.column[row].as_py() or {}
        if cell.get("bytes") is not None:
            content: bytes = cell["bytes"]
            return content
        if cell.get("path"):
            return Path(cell["path"])
        raise UnreadableImage("the image has neither bytes nor a path", file=self.location(row))


class FileStore(ImageStore):
    """Images in files of their own."""

    def __init__(
        self, files: list[Path], labels: Labels, class_names: list[str], origin: str
    ) -> None:
        self.files = files
        super().__init__(labels, class_names, origin)

    def location(self, row: int) -> str:
        return str(self.files[row])

    def encoded(self, row: int) -> Path:
        return self.files[row]

    def quick_hash(self, row: int) -> bytes:
        """Return size and last 64 bytes, so that most files are never read completely."""
        with self.files[row].open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 64))
            return b"%d " % size + file.read()


class DatasetStore(ImageStore):
    """Images of a map-style dataset whose items start with an opened image, as torchvision's do."""

    def __init__(self, dataset: Any, labels: Labels, class_names: list[str], origin: str) -> None:
        self.dataset = dataset
        _check_lengths(len(dataset), len(labels), origin)
        super().__init__(labels, class_names, origin)

    def encoded(self, row: int) -> Image.Image:
        image: Image.Image = self.dataset[row][0]
        return image


def _check_lengths(n_images: int, n_labels: int, origin: str) -> None:
    if n_images != n_labels:
        raise InputError(f"there are {n_images} images, but {n_labels} labels", file=origin)


class SubsetStore(ImageStore):
    """Some rows of another store, numbered from 0."""

    def __init__(self, images: ImageStore, rows: np.ndarray) -> None:
        self.images = images
        self.rows = rows
        labels = images.labels[torch.from_numpy(rows)]
        super().__init__(labels, images.class_names, images.origin, images.n_channels)

    def location(self, row: int) -> str:
        return self.images.location(int(self.rows[row]))

    def encoded(self, row: int) -> bytes | Path | Image.Image:
        return self.images.encoded(int(self.rows[row]))

    def quick_hash(self, row: int) -> bytes:
        return self.images.quick_hash(int(self.rows[row]))


def stratified_split(
    images: ImageStore, fraction: float, seed: int
) -> tuple[ImageStore, ImageStore]:
    """Split a store in two, with equal shares of each class and no image on both sides.

    Identical images, which collected photographs often contain, stay on one side even if their
    labels differ. Libraries that split by row leak them into the held-out side.

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
        raise InputError(
            f"the share to hold out must be between 0 and 1, got {fraction}", file=images.origin
        )
    quick_hashes = [images.quick_hash(row) for row in range(len(images))]
    n_equal = Counter(quick_hashes)
    copies: dict[tuple[bytes, bytes], list[int]] = {}
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
        raise InputError(
            f"{len(images)} images are too few to hold out a share of {fraction} of each class",
            file=images.origin,
        )
    return (
        SubsetStore(images, np.flatnonzero(~held_out)),
        SubsetStore(images, np.flatnonzero(held_out)),
    )
