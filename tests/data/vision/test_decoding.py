import numpy as np
import pytest
import torch
from PIL import Image

from fourfold.data.vision.decoding import UnreadableImage, decode
from fourfold.errors import InputError


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16"])
@pytest.mark.parametrize("n_channels", [1, 3])
def test_every_mode_is_converted_to_gray_or_rgb(mode: str, n_channels: int) -> None:
    white = {"1": 1, "L": 255, "P": 255, "I;16": 65535}.get(mode)
    if mode == "LA":
        white = (255, 0)  # transparent white stays white
    elif mode == "RGBA":
        white = (255, 255, 255, 0)
    elif mode == "CMYK":
        white = (0, 0, 0, 0)
    elif mode == "YCbCr":
        white = (255, 128, 128)
    elif mode == "RGB":
        white = (255, 255, 255)
    image = Image.new(mode, (4, 3), white)
    if mode == "P":
        image.putpalette([255] * 768)
    pixels = decode(image, n_channels, "white")
    assert pixels.shape == (n_channels, 3, 4)
    assert pixels.dtype == torch.uint8
    assert (pixels == 255).all()


def test_16_bits_are_scaled_and_floats_rejected() -> None:
    middle = Image.fromarray(np.full((2, 2), 128 << 8, dtype=np.uint16))
    assert (decode(middle, 3, "x") == 128).all()
    with pytest.raises(InputError, match="mode F"):
        decode(Image.fromarray(np.ones((2, 2), dtype=np.float32)), 3, "x")


def test_pixels_keep_position_and_channels() -> None:
    image = Image.new("RGB", (2, 1))
    image.putpixel((1, 0), (10, 20, 30))
    assert decode(image, 3, "x")[:, 0, 1].tolist() == [10, 20, 30]


def test_message_survives_a_worker_process() -> None:
    """A DataLoader builds the exception anew from the traceback that its worker printed."""
    error = UnreadableImage("the image cannot be read: it is truncated", file="a/b.png")
    traceback = f"Caught UnreadableImage in worker 0.\nTraceback:\nx.UnreadableImage: {error}\n"
    rebuilt = UnreadableImage(traceback)
    assert str(rebuilt) == str(error) == "a/b.png: the image cannot be read: it is truncated"
    assert rebuilt.file == "a/b.png"
