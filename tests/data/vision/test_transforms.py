import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from fourfold.core.errors import InputError
from fourfold.data.pixels import decode
from fourfold.data.transforms import EvalTransform, Normalize, TransformConfig, eval_transform


def noise(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": 0}, "size.*0"),
        ({"crop": "centre"}, "crop is unknown: 'centre'"),
        ({"interpolation": "nearest"}, "interpolation is unknown: 'nearest'"),
        ({"erase": 1.5}, "erase.*1.5"),
        ({"mixup_switch": -0.1}, "mixup_switch.*-0.1"),
        ({"mixup": -1.0}, "mixup.*-1.0"),
        ({"crop_area": 0.0}, "crop_area.*0.0"),
        ({"eval_crop": 1.2}, "eval_crop.*1.2"),
        ({"rand_augment": (2, 15)}, r"rand_augment.*\(2, 15\)"),
        ({"auto_augment": "svhn"}, r"auto_augment.*svhn"),
        ({"std": (0.5, 0.0, 0.5)}, "std.*0.0"),
        ({"std": ()}, "std"),
    ],
)
def test_a_value_out_of_range_is_named(options: dict, said: str) -> None:
    with pytest.raises(InputError, match=said):
        TransformConfig(**options)


def test_mean_must_fit_the_channels() -> None:
    with pytest.raises(InputError, match=r"transform.mean has 2 values for 3 channels"):
        Normalize((0.5, 0.5), (0.5,), 3)
    with pytest.raises(InputError, match=r"transform.std has 3 values for 1 channels"):
        Normalize((0.5,), (0.5, 0.5, 0.5), 1)


def test_normalise_is_torchvisions() -> None:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    pixels = noise(2, 3, 5, 5)
    kept = pixels.clone()
    expected = v2.Normalize(mean, std)(pixels.float() / 255)
    torch.testing.assert_close(Normalize(mean, std, 3)(pixels), expected)
    assert torch.equal(pixels, kept)
    flat = Normalize((0.5,), (0.5,), 3)(torch.tensor([0, 255], dtype=torch.uint8).expand(3, 1, 2))
    assert flat.min() == -1
    assert flat.max() == 1


@pytest.mark.parametrize(
    ("height", "width", "size", "ratio"),
    [(32, 32, 32, 1.0), (60, 50, 32, 0.875), (50, 40, 28, 0.875), (9, 30, 8, 1.0)],
)
def test_evaluation_crops_the_centre_of_the_scaled_image(
    height: int, width: int, size: int, ratio: float
) -> None:
    pixels = noise(3, height, width)
    config = TransformConfig(eval_crop=ratio, mean=(0.0,), std=(1.0,))
    expected = v2.Compose(
        [
            v2.Resize(int(size / ratio), interpolation=3, antialias=True),
            v2.CenterCrop(size),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )(pixels)
    torch.testing.assert_close(EvalTransform(config, size, 3)([pixels])[0], expected)


def test_deit_evaluates_224_pixels_of_256() -> None:
    left = torch.zeros(1, 3, 256, 256, dtype=torch.uint8)
    left[..., 16] = 255  # the first column that a crop of 224 keeps
    config = TransformConfig(crop="resized", mean=(0.0,), std=(1.0,))
    images = EvalTransform(config, 224, 3)(left)
    assert images.shape == (1, 3, 224, 224)
    assert (images[..., 0] == 1).all()
    assert (images[..., 1:] == 0).all()


def test_the_default_evaluation_crop_follows_the_training_crop() -> None:
    assert TransformConfig(crop="resized").eval_ratio == 0.875
    assert TransformConfig(crop="padded").eval_ratio == 1.0
    assert TransformConfig(crop="resized", eval_crop=0.9).eval_ratio == 0.9


def artifacts(**changed: object) -> dict:
    return {
        "class_names": ["a", "b"],
        "image_size": 8,
        "n_channels": 3,
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
        "eval_crop": 1.0,
        "interpolation": "bicubic",
    } | changed


def test_a_file_and_an_opened_image_give_the_same_input(tmp_path) -> None:
    picture = Image.fromarray(np.asarray(noise(12, 10, 3)))
    picture.save(tmp_path / "a.png")
    prepare = eval_transform(artifacts())
    from_file = prepare(tmp_path / "a.png")
    assert from_file.shape == (3, 8, 8)
    assert torch.equal(from_file, prepare(str(tmp_path / "a.png")))
    assert torch.equal(from_file, prepare(picture))
    assert eval_transform(artifacts(n_channels=1, mean=[0.5], std=[0.5]))(picture).shape == (
        1,
        8,
        8,
    )


def test_what_cannot_be_classified_is_named(tmp_path) -> None:
    prepare = eval_transform(artifacts())
    (tmp_path / "text.png").write_text("not an image")
    with pytest.raises(InputError, match=r"text\.png cannot be read: not in an image format\.$"):
        prepare(tmp_path / "text.png")
    with pytest.raises(InputError, match=r"There is no image file .*gone\.png\.$"):
        prepare(tmp_path / "gone.png")
    with pytest.raises(InputError, match="no 'image_size'"):
        eval_transform({"tokenizer": "{}"})
    with pytest.raises(InputError, match="reads 4"):
        eval_transform(artifacts(n_channels=4))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16"])
@pytest.mark.parametrize("n_channels", [1, 3])
def test_every_mode_becomes_grey_or_rgb(mode: str, n_channels: int) -> None:
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
    picture = Image.new(mode, (4, 3), white)
    if mode == "P":
        picture.putpalette([255] * 768)
    pixels = decode(picture, n_channels, "white")
    assert pixels.shape == (n_channels, 3, 4)
    assert pixels.dtype == torch.uint8
    assert (pixels == 255).all()


def test_sixteen_bits_are_scaled_and_floats_refused() -> None:
    middle = Image.fromarray(np.full((2, 2), 128 << 8, dtype=np.uint16))
    assert (decode(middle, 3, "x") == 128).all()
    with pytest.raises(InputError, match="mode F"):
        decode(Image.fromarray(np.ones((2, 2), dtype=np.float32)), 3, "x")


def test_colours_keep_their_place() -> None:
    picture = Image.new("RGB", (2, 1))
    picture.putpixel((1, 0), (10, 20, 30))
    assert decode(picture, 3, "x")[:, 0, 1].tolist() == [10, 20, 30]


def test_means_are_described_as_they_were_given() -> None:
    """In fp32 ImageNet's would have other digits than those of a model that was imported."""
    config = TransformConfig(mean=(0.485, 0.456, 0.406), std=(0.229,))
    said = EvalTransform(config, 8, 3).described()
    assert (said["mean"], said["std"]) == ([0.485, 0.456, 0.406], [0.229] * 3)
