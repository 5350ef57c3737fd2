from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from fourfold.data.vision.eval_transforms import (
    EvalTransform,
    Normalize,
    TransformConfig,
    eval_transform,
)
from fourfold.errors import InputError


def noise(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size.*0"),
        ({"train_crop": "centre"}, "transform.train_crop must be one of .*, got 'centre'"),
        ({"crop_mode": "border"}, "transform.crop_mode must be one of .*, got 'border'"),
        ({"interpolation": "nearest"}, "interpolation must be one of .*, got 'nearest'"),
        ({"reprob": 1.5}, "reprob must be at least 0 and at most 1, got 1.5"),
        ({"mixup_switch": -0.1}, "mixup_switch.*-0.1"),
        ({"mixup": -1.0}, "mixup.*-1.0"),
        ({"scale_min": 0.0}, "scale_min.*0.0"),
        ({"crop_pct": 1.2}, "crop_pct.*1.2"),
        ({"aa": "rand-m15-n2"}, "transform.aa must be .*, got 'rand-m15-n2'"),
        ({"aa": "rand-m9-n0"}, "aa must be .* N at least 1, got 'rand-m9-n0'"),
        ({"aa": "rand-m9"}, "aa must be .*, got 'rand-m9'"),
        ({"aa": "svhn"}, "aa must be imagenet, cifar10 or .*, got 'svhn'"),
        ({"std": (0.5, 0.0, 0.5)}, "std.*0.0"),
        ({"std": ()}, "std"),
    ],
)
def test_value_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TransformConfig(**options)


def test_number_of_means_differs_from_channels() -> None:
    with pytest.raises(InputError, match=r"transform.mean must .* 3 channels, got \[0.5, 0.5\]"):
        Normalize((0.5, 0.5), (0.5,), 3)
    with pytest.raises(InputError, match=r"transform.std must .* 1 channels, got"):
        Normalize((0.5,), (0.5, 0.5, 0.5), 1)


def test_normalize_equals_torchvision() -> None:
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
def test_evaluation_resizes_and_crops_the_center(
    height: int, width: int, size: int, ratio: float
) -> None:
    pixels = noise(3, height, width)
    config = TransformConfig(crop_pct=ratio, mean=(0.0,), std=(1.0,))
    expected = v2.Compose(
        [
            v2.Resize(int(size / ratio), interpolation=3, antialias=True),
            v2.CenterCrop(size),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )(pixels)
    torch.testing.assert_close(EvalTransform(config, size, 3)([pixels])[0], expected)


def test_default_crop_of_224_pixels_from_256() -> None:
    left = torch.zeros(1, 3, 256, 256, dtype=torch.uint8)
    left[..., 16] = 255  # the first column that a crop of 224 keeps
    config = TransformConfig(train_crop="random_resized_crop", mean=(0.0,), std=(1.0,))
    images = EvalTransform(config, 224, 3)(left)
    assert images.shape == (1, 3, 224, 224)
    assert (images[..., 0] == 1).all()
    assert (images[..., 1:] == 0).all()


def test_default_crop_pct_depends_on_the_training_crop() -> None:
    assert TransformConfig(train_crop="random_resized_crop").effective_crop_pct == 0.875
    assert TransformConfig(train_crop="pad_crop").effective_crop_pct == 1.0
    assert TransformConfig(train_crop="random_resized_crop", crop_pct=0.9).effective_crop_pct == 0.9


def artifacts(**changed: object) -> dict[str, Any]:
    return {
        "class_names": ["a", "b"],
        "image_size": 8,
        "n_channels": 3,
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
        "crop_pct": 1.0,
        "crop_mode": "center",
        "interpolation": "bicubic",
    } | changed


def test_file_and_opened_image_give_equal_inputs(tmp_path: Path) -> None:
    image = Image.fromarray(np.asarray(noise(12, 10, 3)))
    image.save(tmp_path / "a.png")
    prepare = eval_transform(artifacts())
    from_file = prepare(tmp_path / "a.png")
    assert from_file.shape == (3, 8, 8)
    assert torch.equal(from_file, prepare(str(tmp_path / "a.png")))
    assert torch.equal(from_file, prepare(image))
    assert eval_transform(artifacts(n_channels=1, mean=[0.5], std=[0.5]))(image).shape == (
        1,
        8,
        8,
    )


def test_image_that_cannot_be_prepared(tmp_path: Path) -> None:
    prepare = eval_transform(artifacts())
    (tmp_path / "text.png").write_text("not an image")
    with pytest.raises(
        InputError, match=r"text\.png: the image cannot be read: it is not in an image format$"
    ):
        prepare(tmp_path / "text.png")
    with pytest.raises(InputError, match=r"gone\.png: the image cannot be read: No such file"):
        prepare(tmp_path / "gone.png")
    with pytest.raises(InputError, match="image_size must be in the checkpoint"):
        eval_transform({"tokenizer": "{}"})
    with pytest.raises(InputError, match="n_channels must be one of 1, 3, got 4"):
        eval_transform(artifacts(n_channels=4))


def test_artifacts_hold_means_in_full_precision() -> None:
    """In fp32, ImageNet's means would have other digits than those of an imported model."""
    config = TransformConfig(mean=(0.485, 0.456, 0.406), std=(0.229,))
    settings = EvalTransform(config, 8, 3).artifacts()
    assert (settings["mean"], settings["std"]) == ([0.485, 0.456, 0.406], [0.229] * 3)


def test_crop_of_a_tiny_share_is_rejected() -> None:
    settings = {"image_size": 512, "n_channels": 1, "mean": [0.5], "std": [0.5]}
    settings |= {"crop_mode": "center", "interpolation": "bilinear", "crop_pct": 1e-4}
    with pytest.raises(InputError, match="crop_pct must be at least"):
        eval_transform(settings)
