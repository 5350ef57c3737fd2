"""From an encoded image to pixels: the one place where image files are opened.

Legend: C channels, H height, W width.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fourfold.core.errors import InputError

MODES = {1: "L", 3: "RGB"}
"""Pillow's mode for each number of channels a model may read."""


class UnreadableImage(InputError):
    """An image that cannot be decoded.

    A DataLoader rebuilds a worker's exception from its printed traceback; of that text only the
    sentence is kept, so that the user reads the same words with and without workers.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message.rpartition(f"{type(self).__name__}: ")[2].strip())


def decode(image: bytes | str | Path | Image.Image, n_channels: int, name: str) -> Tensor:
    """Pixels of one image, as grey or RGB whatever it was stored as. Transparency is dropped.

    As by torchvision and timm it is not turned as EXIF says, which `datasets` and pipelines do.

    Args:
        image: encoded bytes, the path of a file, or an opened image.
        n_channels: 1 or 3.
        name: what to call the image in a message.

    Returns:
        (C, H, W) uint8.

    Raises:
        UnreadableImage: there is no such file, or it is no image, or only a part of one.
    """
    if isinstance(image, str | Path) and not _is_file(image):
        raise UnreadableImage(f"There is no image file {name}.")
    try:
        opened = image if isinstance(image, Image.Image) else _open(image)
        pixels = np.array(_in_mode(opened, MODES[n_channels]))
    except UnreadableImage:
        raise
    except Exception as error:  # Pillow's decoders fail in as many ways as there are formats
        reason = " ".join(str(error).split()) or type(error).__name__
        if isinstance(error, Image.UnidentifiedImageError):
            reason = "not in an image format"
        raise UnreadableImage(f"The image {name} cannot be read: {reason}.") from error
    tensor = torch.from_numpy(pixels)
    return tensor[None] if n_channels == 1 else tensor.permute(2, 0, 1).contiguous()


def _is_file(path: str | Path) -> bool:
    try:
        return Path(path).is_file()
    except OSError:  # a name that is too long
        return False


def _open(image: bytes | str | Path) -> Image.Image:
    return Image.open(io.BytesIO(image) if isinstance(image, bytes) else image)


def _in_mode(image: Image.Image, mode: str) -> Image.Image:
    if image.mode.startswith("I;16"):  # Pillow would clip these 16 bits where one expects scaling
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"pixels of mode {image.mode} have no fixed range to scale from")
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # by way of RGBA, or Pillow warns
    return image.convert(mode)  # returns at least a loaded copy, so a cut file is found here
