"""Options of image transforms, and the deterministic transform of evaluation and inference.

Shapes: B images, C channels, H height, W width.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fourfold.core.validation import (
    MAX_IMAGE_SIDE,
    ImageSize,
    canonical_size,
    check_choice,
    check_range,
    check_types,
    height_width,
)
from fourfold.data.vision.image_stores import PIL_MODES, decode
from fourfold.errors import InputError

_TRANSFORM_ARTIFACTS = ("mean", "std", "crop_pct", "crop_mode", "interpolation")


@dataclass(frozen=True)
class TransformConfig:
    """Options of the image transforms; most names are those of timm.

    Training images are cropped, changed by `aa` and `color_jitter`, flipped and normalized. Then
    random rectangles are erased (`reprob`), and pairs of images are mixed (`mixup`, `cutmix`). The
    operations of `aa` are those of torchvision. Unlike in timm's RandAugment, Identity is included,
    Invert and SolarizeAdd are not, and Posterize keeps 4 bits at magnitude 9.

    Args:
        size: Height and width of the model input in pixels, or the side of a square; None means
            the size of the first training image.
        train_crop: "none" (complete image), "pad_crop" (zero padding of 1/8 of the shorter side and
            a random crop, He et al. 2016) or "random_resized_crop" (a random area at a random
            aspect ratio, Szegedy et al. 2015).
        scale_min: Smallest share of the area in `random_resized_crop` (0.08 in DeiT, 0.05 in
            big_vision).
        flip: Flip each training image horizontally with probability 1/2.
        aa: "rand-mM-nN" is RandAugment (Cubuk et al. 2020) with N operations of magnitude M from 0
            to 10, such as "rand-m9-n2". As in timm and big_vision, magnitude 10 rotates by 30
            degrees. "imagenet" and "cifar10" are the AutoAugment policies (Cubuk et al. 2019) of
            these datasets. None disables both.
        color_jitter: Strength of random brightness, contrast and saturation, also with `aa`.
        reprob: Probability of random erasing with noise (Zhong et al. 2020).
        mixup: Parameter a of the distribution Beta(a, a) of MixUp (Zhang et al. 2018); 0 disables
            it.
        cutmix: Parameter a of the distribution Beta(a, a) of CutMix (Yun et al. 2019); 0 disables
            it.
        mixup_switch: Probability that a pair gets CutMix instead of MixUp, if both are enabled.
        crop_pct: In evaluation, the side of the crop divided by the length to which the shorter
            side of the image is resized. None means 0.875 if `train_crop` is "random_resized_crop",
            because random crops make objects look larger in training; otherwise 1.
        crop_mode: In evaluation, "center" keeps the aspect ratio of the image and crops the center.
            "squash" resizes height and width to those of the input, divided by `crop_pct`, as the
            processors of ViT and DeiT in transformers do, and crops the center.
        interpolation: "bilinear" or "bicubic".
        mean: Mean of pixels in [0, 1] that normalization subtracts, one number or one for each
            channel.
        std: Standard deviation by which normalization divides, one number or one for each channel.

    Raises:
        InputError: A value is out of range.
    """

    size: ImageSize | None = None
    train_crop: Literal["none", "pad_crop", "random_resized_crop"] = "none"
    scale_min: float = 0.08
    flip: bool = False
    aa: str | None = None
    color_jitter: float = 0.0
    reprob: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    mixup_switch: float = 0.5
    crop_pct: float | None = None
    crop_mode: Literal["center", "squash"] = "center"
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)

    def __post_init__(self) -> None:
        check_types(self, prefix="transform.")
        if self.size is not None:
            height_width(self.size, "transform.size")
        policies = "imagenet, cifar10 or rand-mM-nN with M at most 10 and N at least 1"
        if self.aa not in (None, "imagenet", "cifar10") and not self.rand_augment:
            raise InputError(f"must be {policies}, got {self.aa!r}", option="transform.aa")
        check_range("transform.scale_min", self.scale_min, above=0.0, maximum=1.0)
        check_range("transform.crop_pct", self.effective_crop_pct, above=0.0, maximum=1.0)
        check_range("transform.std", min(self.std, default=0.0), above=0.0)
        for name in ("color_jitter", "mixup", "cutmix"):
            check_range(f"transform.{name}", getattr(self, name), minimum=0.0)
        for name in ("reprob", "mixup_switch"):
            check_range(f"transform.{name}", getattr(self, name), minimum=0.0, maximum=1.0)

    @property
    def rand_augment(self) -> tuple[int, float] | None:
        """Number of operations and magnitude (0 to 10) of RandAugment, or None."""
        match = re.fullmatch(r"rand-m(10|\d(?:\.\d+)?)-n([1-9]\d*)", self.aa or "")
        return (int(match[2]), float(match[1])) if match else None

    @property
    def effective_crop_pct(self) -> float:
        """Value of `crop_pct`, or its default if `crop_pct` is None."""
        default = 0.875 if self.train_crop == "random_resized_crop" else 1.0
        return default if self.crop_pct is None else self.crop_pct


class Normalize:
    """Conversion of uint8 pixels to floats with about zero mean and unit variance.

    Raises:
        InputError: The number of means or deviations is neither 1 nor `n_channels`.
    """

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], n_channels: int) -> None:
        for name, values in (("mean", mean), ("std", std)):
            if len(values) not in (1, n_channels):
                message = f"must have 1 value or one for each of {n_channels} channels"
                raise InputError(f"{message}, got {list(values)}", option=f"transform.{name}")
        self.mean = torch.tensor(mean, dtype=torch.float32).expand(n_channels)
        deviation = torch.tensor(std, dtype=torch.float32).expand(n_channels)
        self._scale = (1 / (255 * deviation))[:, None, None]
        self._shift = (-self.mean / deviation)[:, None, None]

    def __call__(self, pixels: Tensor) -> Tensor:
        """Normalize pixels (..., C, H, W) uint8, and return them as float32 of the same shape."""
        return pixels.to(torch.float32, copy=True).mul_(self._scale).add_(self._shift)


def resized_side(size: int, crop_pct: float) -> int:
    """Return the length to which a side is resized before a center crop of `size`."""
    return math.floor(size / crop_pct + 1e-6)  # undoes the rounding of ratios such as 224 / 400


def resize_and_crop(
    pixels: Tensor | list[Tensor],
    resized: tuple[int, int],
    size: tuple[int, int],
    interpolation: str,
    squash: bool = False,
) -> Tensor:
    """Resize images, and crop the center of each to (B, C, *size) uint8.

    Args:
        pixels: (B, C, H, W) uint8, or a list of B images (C, H, W) uint8 of any sizes.
        resized: Height and width in pixels to which the images are resized.
        size: Height and width of the result in pixels.
        interpolation: "bilinear" or "bicubic".
        squash: Change the aspect ratio of the images. Without it, an image gets the smallest size
            of its aspect ratio that covers `resized`.
    """
    if isinstance(pixels, list):
        options = (resized, size, interpolation, squash)
        return torch.cat([resize_and_crop(image[None], *options) for image in pixels])
    # Importing torchvision takes half a second, which text tasks should not wait for.
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2 import functional as F

    height, width = resized
    if not squash:  # rounded as in torchvision
        h, w = pixels.shape[-2:]
        height, width = max(height, h * width // w), max(width, w * height // h)
    mode = InterpolationMode(interpolation)
    pixels = F.resize(pixels, [height, width], mode, antialias=True)
    return F.center_crop(pixels, list(size))


@dataclass(eq=False)
class EvalTransform:
    """Deterministic transform from pixels to model input, for evaluation and inference.

    The options of random transforms in `config` are not used. `size` is the size of the input in
    pixels.
    """

    config: TransformConfig
    size: ImageSize
    n_channels: int

    def __post_init__(self) -> None:
        self.size = canonical_size(self.size)
        # A damaged checkpoint may hold 1e-300.
        smallest = max(height_width(self.size)) / MAX_IMAGE_SIDE
        check_range("transform.crop_pct", self.config.effective_crop_pct, minimum=smallest)
        self.normalize = Normalize(self.config.mean, self.config.std, self.n_channels)

    def __call__(
        self, pixels: Tensor | list[Tensor], epoch: int = 0, rows: np.ndarray | None = None
    ) -> Tensor:
        """Transform (B, C, H, W) uint8 or a list of images to (B, C, *size) float32.

        `epoch` and `rows` are unused; `Augmentation` has the same arguments.
        """
        config, (height, width) = self.config, height_width(self.size)
        pct = config.effective_crop_pct
        resized = resized_side(height, pct), resized_side(width, pct)
        options = (config.interpolation, config.crop_mode == "squash")
        return self.normalize(resize_and_crop(pixels, resized, (height, width), *options))

    def artifacts(self) -> dict[str, Any]:
        """Return the settings from which `eval_transform` builds this transform again.

        The keys are image_size, n_channels, mean, std, crop_pct, crop_mode and interpolation.
        """
        config = self.config
        return {
            "image_size": self.size,
            "n_channels": self.n_channels,
            # The floats of the options. The float32 tensors would have other digits.
            "mean": [float(x) for x in config.mean] * (self.n_channels // len(config.mean)),
            "std": [float(x) for x in config.std] * (self.n_channels // len(config.std)),
            "crop_pct": config.effective_crop_pct,
            "crop_mode": config.crop_mode,
            "interpolation": config.interpolation,
        }


def eval_transform(artifacts: dict[str, Any]) -> Callable[[str | Path | Image.Image], Tensor]:
    """Return the evaluation transform of a trained model as a function of one image.

    Args:
        artifacts: Values that the checkpoint of the model stores for inference.

    Returns:
        Function from an image file, or an opened image, to the model's input (C, H, W) float32. The
        function raises UnreadableImage if the image cannot be decoded.

    Raises:
        InputError: The artifacts are not those of an image model.
    """
    transform = stored_transform(artifacts)
    n_channels = transform.n_channels
    return lambda image: transform([decode(image, n_channels, str(image))])[0]


def stored_transform(artifacts: Mapping[str, Any]) -> EvalTransform:
    """Return the evaluation transform that the artifacts of a checkpoint describe.

    Raises:
        InputError: The artifacts are not those of an image model.
    """
    for key in ("image_size", "n_channels", *_TRANSFORM_ARTIFACTS):
        if key not in artifacts:
            raise InputError("must be in the checkpoint to prepare images", option=key)
    check_choice("n_channels", artifacts["n_channels"], list(PIL_MODES))
    config = TransformConfig(**{key: artifacts[key] for key in _TRANSFORM_ARTIFACTS})
    return EvalTransform(config, artifacts["image_size"], artifacts["n_channels"])
