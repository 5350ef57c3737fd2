import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

from fourfold.data.vision.image_stores import (
    FileStore,
    ImageStore,
    UnreadableImage,
    decode,
    stratified_split,
)
from fourfold.errors import InputError
from tests.data.vision.stores import digests, open_path, write_png
from tests.fuzz.images import announced


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


def test_orientation_in_exif_is_ignored(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    Image.new("RGB", (6, 4)).save(tmp_path / "a.jpg", exif=exif)
    assert decode(tmp_path / "a.jpg", 3, "a.jpg").shape == (3, 4, 6)


def random_images(labels: list[int], n_classes: int, size: int = 4) -> ImageStore:
    pixels = np.random.default_rng(0).integers(0, 256, (len(labels), size, size), dtype=np.uint8)
    images = [Image.fromarray(image) for image in pixels]
    return ImageStore(images, labels, [f"c{k}" for k in range(n_classes)], "array")


def test_split_is_disjoint_complete_stratified_and_reproducible() -> None:
    images = random_images([0] * 50 + [1] * 30 + [2] * 20, 3)
    rest, held_out = stratified_split(images, 0.2, seed=1)
    assert torch.bincount(held_out.labels).tolist() == [10, 6, 4]
    assert not digests(rest) & digests(held_out)
    assert digests(rest) | digests(held_out) == digests(images)
    assert torch.equal(held_out.pixels(3, 1), images.pixels(int(held_out.rows[3]), 1))
    again = stratified_split(images, 0.2, seed=1)[1]
    other = stratified_split(images, 0.2, seed=2)[1]
    assert np.array_equal(again.rows, held_out.rows)
    assert not np.array_equal(other.rows, held_out.rows)


def test_identical_images_stay_on_one_side_of_a_split() -> None:
    """Identical images may have different labels, as in collected photographs."""
    images = random_images([0, 1] * 30, 2)
    images.images[40:] = images.images[:20]
    rest, held_out = stratified_split(images, 0.3, seed=0)
    assert not digests(rest) & digests(held_out)
    assert len(rest) + len(held_out) == 60
    assert 14 <= len(held_out) <= 22


def test_split_reads_only_files_that_may_be_identical(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for k in range(40):
        file = tmp_path / "ab"[k % 2] / f"{k}.png"
        write_png(file, k % 30)
        with file.open("ab") as opened:
            opened.write(bytes(k % 30))  # so that equal images alone have equal sizes
    images = open_path(tmp_path)["train"]
    complete_reads: list[str] = []

    def digest(self: FileStore, row: int) -> bytes:
        complete_reads.append(Path(self.location(row)).stem)
        return ImageStore.digest(self, row)

    monkeypatch.setattr(FileStore, "digest", digest)
    stores = stratified_split(images, 0.3, seed=0)
    assert set(map(int, complete_reads)) == {*range(10), *range(30, 40)}
    assert not digests(stores[0]) & digests(stores[1])
    assert len(stratified_split(stores[0], 0.3, seed=0)[1])


def test_split_leaves_an_image_of_every_class() -> None:
    rest, held_out = stratified_split(random_images([0] * 20 + [1], 2), 0.9, seed=0)
    assert set(rest.labels.tolist()) == {0, 1}
    assert set(held_out.labels.tolist()) == {0}


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5])
def test_fraction_out_of_range(fraction: float) -> None:
    with pytest.raises(InputError, match=f"must be above 0 and below 1, got {fraction}"):
        stratified_split(random_images([0, 1], 2), fraction, seed=0)


def test_too_few_images_to_hold_out() -> None:
    with pytest.raises(InputError, match=r"array: 4 images are too few .* 0.1"):
        stratified_split(random_images([0, 0, 1, 1], 2), 0.1, seed=0)


@pytest.mark.parametrize("label", [-1, 2])
def test_label_out_of_range(label: int) -> None:
    with pytest.raises(InputError, match=f"array, row 2: .* from 0 to 1, got {label}"):
        random_images([0, 1, label], 2)


def test_no_images() -> None:
    with pytest.raises(InputError, match="array: there are no images"):
        random_images([], 2)


def test_incomplete_jpeg_is_not_filled_with_gray(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    file = tmp_path / "x.jpg"
    Image.fromarray(noise).save(file)
    images = FileStore([file.name], [0], ["a"], str(tmp_path))
    assert images.pixels(0, 3).shape == (3, 64, 64)
    complete = file.read_bytes()
    file.write_bytes(complete[: len(complete) // 2])
    with pytest.raises(InputError, match=r"x\.jpg: the image cannot be read: .*truncated"):
        images.pixels(0, 3)


def test_image_of_very_many_pixels_is_rejected_before_it_is_decoded() -> None:
    begin = time.process_time()
    with pytest.raises(UnreadableImage, match=r"big.png: the image cannot be read: .* pixels"):
        decode(announced(60_000, 60_000), 3, "big.png")
    assert time.process_time() - begin < 1


def test_postscript_is_not_passed_to_another_program() -> None:
    text = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
    with pytest.raises(UnreadableImage, match=r"a.eps: .*PostScript is not supported"):
        decode(text, 3, "a.eps")
