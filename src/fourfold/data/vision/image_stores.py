"""Labelled images by row, stored as arrays, encoded columns, files, or torchvision's data sets.

Legend: N images, C channels, H height, W width.
"""

from __future__ import annotations

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

from fourfold.core.errors import InputError
from fourfold.data.pixels import UnreadableImage, decode


class UnlabelledImages(InputError):
    """None of a split's images has a label: all are -1, as where a test's are kept secret."""


class Images(ABC):
    """A split: N images with labels, decoded when asked for.

    Args:
        labels: N class numbers.
        class_names: K names.
        origin: what to call the split in a message: its file or folder.
        n_channels: of the images themselves.

    Raises:
        InputError: no images, or a label that is no class.
    """

    def __init__(
        self,
        labels: Sequence[int] | np.ndarray | Tensor,
        class_names: list[str],
        origin: str,
        n_channels: int = 3,
    ) -> None:
        self.labels = torch.as_tensor(np.asarray(labels, dtype=np.int64))
        self.class_names, self.origin, self.n_channels = class_names, origin, n_channels
        if not len(self.labels):
            raise InputError(f"{origin} holds no images.")
        if (self.labels == -1).all():
            raise UnlabelledImages(f"{origin} has no labels: all of them are -1.")
        wrong = (self.labels < 0) | (self.labels >= len(class_names))
        if wrong.any():
            row = int(wrong.nonzero()[0])
            raise InputError(
                f"{self.name(row)} has label {int(self.labels[row])}, but the"
                f" {len(class_names)} classes are numbered 0 to {len(class_names) - 1}."
            )

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, row: int) -> str:
        """What to call an image in a message."""
        return f"{self.origin}, row {row}"

    @abstractmethod
    def encoded(self, row: int) -> bytes | Path | Image.Image:
        """An image as it is stored."""

    def pixels(self, row: int, n_channels: int) -> Tensor:
        """(C, H, W) uint8.

        Raises:
            UnreadableImage: the image is corrupt.
        """
        return decode(self.encoded(row), n_channels, self.name(row))

    def glimpse(self, row: int) -> bytes:
        """Equal for identical images and some others, where that is quicker found than `digest`."""
        return b""

    def digest(self, row: int) -> bytes:
        """Equal for identical images."""
        image = self.encoded(row)
        if isinstance(image, Image.Image):
            content = repr((image.mode, image.size)).encode() + image.tobytes()
        else:
            content = image.read_bytes() if isinstance(image, Path) else image
        return hashlib.blake2b(content, digest_size=16).digest()


class ArrayImages(Images):
    """Images in an array (N, H, W) or (N, H, W, 3) of uint8."""

    def __init__(
        self,
        array: np.ndarray,
        labels: Sequence[int] | np.ndarray,
        class_names: list[str],
        origin: str,
    ) -> None:
        self.array = array
        super().__init__(labels, class_names, origin, n_channels=1 if array.ndim == 3 else 3)
        if len(array) != len(self.labels):
            raise InputError(f"{origin} holds {len(array)} images but {len(self.labels)} labels.")

    def encoded(self, row: int) -> Image.Image:
        return Image.fromarray(self.array[row])


class ColumnImages(Images):
    """Encoded images in an Arrow column of {bytes, path}, as the `datasets` library writes them."""

    def __init__(
        self, column: Any, labels: Sequence[int] | np.ndarray, class_names: list[str], origin: str
    ) -> None:
        self.column = column
        super().__init__(labels, class_names, origin)

    def encoded(self, row: int) -> bytes | Path:
        cell = self.column[row].as_py() or {}
        if cell.get("bytes") is not None:
            return cell["bytes"]
        if cell.get("path"):
            return Path(cell["path"])
        raise UnreadableImage(f"{self.name(row)} has neither the bytes nor the path of an image.")


class FileImages(Images):
    """One file an image."""

    def __init__(
        self,
        files: list[Path],
        labels: Sequence[int] | np.ndarray,
        class_names: list[str],
        origin: str,
    ) -> None:
        self.files = files
        super().__init__(labels, class_names, origin)

    def name(self, row: int) -> str:
        return str(self.files[row])

    def encoded(self, row: int) -> Path:
        return self.files[row]

    def glimpse(self, row: int) -> bytes:
        with self.files[row].open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 64))
            return b"%d " % size + file.read()


class OpenedImages(Images):
    """A map-style data set whose items begin with an opened image, such as torchvision's."""

    def __init__(
        self, items: Any, labels: Sequence[int] | np.ndarray, class_names: list[str], origin: str
    ) -> None:
        self.items = items
        super().__init__(labels, class_names, origin)

    def encoded(self, row: int) -> Image.Image:
        return self.items[row][0]


class Subset(Images):
    """Some rows of another split, renumbered from 0."""

    def __init__(self, images: Images, rows: np.ndarray) -> None:
        self.images, self.rows = images, rows
        super().__init__(
            images.labels[torch.from_numpy(rows)],
            images.class_names,
            images.origin,
            images.n_channels,
        )

    def name(self, row: int) -> str:
        return self.images.name(int(self.rows[row]))

    def encoded(self, row: int) -> bytes | Path | Image.Image:
        return self.images.encoded(int(self.rows[row]))

    def glimpse(self, row: int) -> bytes:
        return self.images.glimpse(int(self.rows[row]))


def cut(images: Images, fraction: float, seed: int) -> tuple[Images, Images]:
    """Parts a split in two, with the same share of each class, identical images on the same side.

    Args:
        images: the split.
        fraction: share of the second part.
        seed: decides which rows.

    Returns:
        The first and the second part, rows in their old order.

    Raises:
        InputError: the share is not between 0 and 1, or leaves one of the parts empty.
    """
    if not 0 < fraction < 1:
        raise InputError(
            f"The share to cut from {images.origin} must lie between 0 and 1: {fraction}."
        )
    glimpses = [images.glimpse(row) for row in range(len(images))]
    n_alike = Counter(glimpses)
    twins: dict[tuple[bytes, bytes], list[int]] = {}
    for row, glimpse in enumerate(glimpses):
        digest = images.digest(row) if n_alike[glimpse] > 1 else b""
        twins.setdefault((glimpse, digest), []).append(row)
    by_class: dict[int, list[list[int]]] = {}
    for rows in twins.values():
        by_class.setdefault(int(images.labels[rows[0]]), []).append(rows)
    rng, chosen = np.random.default_rng(seed), np.zeros(len(images), dtype=bool)
    for label in sorted(by_class):
        groups = by_class[label]
        wanted = round(fraction * sum(len(rows) for rows in groups))
        for k in rng.permutation(len(groups))[1:]:  # one image of a class stays in any case
            if wanted <= 0:
                break
            chosen[groups[k]] = True
            wanted -= len(groups[k])
    if not chosen.any():
        raise InputError(
            f"{images.origin} is too small to cut a share of {fraction} from each class:"
            f" {len(images)} images."
        )
    return Subset(images, np.flatnonzero(~chosen)), Subset(images, np.flatnonzero(chosen))
