"""Decoding of image files and bytes to uint8 pixels in grayscale or RGB.

Shapes: C channels, H height, W width.
"""

import io
from pathlib import Path

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
