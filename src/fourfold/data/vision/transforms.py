"""Image transform options, and the deterministic transform of evaluation and inference.

Shapes: B images, C channels, H height, W width.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from PIL import Image
from torch import Tensor

from fourfold.core.validation import check_choice
from fourfold.data.vision.decoding import PIL_MODES, decode
from fourfold.errors import InputError

AUTO_AUGMENT_POLICIES = ("imagenet", "cifar10")
MAX_MAGNITUDE = 10  # of RandAugment in timm and in the paper's code


@dataclass(frozen=True)
class TransformConfig:
    """Image transforms; option names are timm's.

    Training images are cropped, changed by `aa` and `color_jitter`, flipped, normalized and erased,
    and then mixed with other images of the batch.

    Args:
        size: Height and width of the input; None takes those of the first training image.
        train_crop: "none" (complete image), "pad_crop" (zero padding of 1/8 of the side and a
            random crop, He et al. 2016) or "random_resized_crop" (a random area at a random aspect
            ratio, Szegedy et al. 2015).
        scale_min: Smallest share of the area in `random_resized_crop` (0.08 in DeiT, 0.05 in
            big_vision).
        flip: Flip half of the images horizontally.
        aa: "rand-m9-n2" for RandAugment (Cubuk et al. 2020) with magnitude 9 and 2 operations, or
            "imagenet" or "cifar10" for the policy that AutoAugment (Cubuk et al. 2019) found there;
            None disables both. As in timm and big_vision, magnitude 10 rotates by 30 degrees:
            torchvision's scale has 31 steps, of which magnitude 9 is step 27. Unlike timm's,
            torchvision's operations include Identity, but neither Invert nor SolarizeAdd, and
            Posterize keeps 4 bits at magnitude 9.
        color_jitter: Strength of random brightness, contrast and saturation. Unlike in timm, it is
            applied in addition to `aa`.
        reprob: Probability of random erasing with noise (Zhong et al. 2020).
        mixup: Parameter of the Beta distribution of MixUp (Zhang et al. 2018); 0 disables it.
        cutmix: Parameter of the Beta distribution of CutMix (Yun et al. 2019); 0 disables it.
        mixup_switch: Probability of CutMix if both are enabled.
        crop_pct: Side of the evaluation crop divided by the resized shorter side. None means 0.875
            after training with `random_resized_crop`, whose objects look larger, and otherwise 1.
        crop_mode: "center" resizes the shorter side and crops the center in evaluation; "squash"
            resizes both sides to the same length, as the processors of ViT and DeiT in transformers
            do.
        interpolation: "bilinear" or "bicubic".
        mean: Mean of each channel in [0, 1], or one number for all channels.
        std: Standard deviation of each channel, or one number for all channels.

    Raises:
        InputError: A value is out of range.
    """

    size: int | None = None
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
        crops = ("none", "pad_crop", "random_resized_crop")
        check_choice("transform.train_crop", self.train_crop, crops)
        check_choice("transform.crop_mode", self.crop_mode, ("center", "squash"))
        check_choice("transform.interpolation", self.interpolation, ("bilinear", "bicubic"))
        if self.size is not None:
            self._check("size", self.size >= 1, "at least 1")
        for name in ("reprob", "mixup_switch"):
            self._check(name, 0 <= getattr(self, name) <= 1, "between 0 and 1")
        for name in ("color_jitter", "mixup", "cutmix"):
            self._check(name, getattr(self, name) >= 0, "at least 0")
        for name in ("scale_min", "crop_pct"):
            value = getattr(self, name)
            self._check(name, value is None or 0 < value <= 1, "above 0 and at most 1")
        self._check("std", len(self.std) > 0 and min(self.std) > 0, "above 0")
        if self.aa is not None and self.aa not in AUTO_AUGMENT_POLICIES:
            n_operations, magnitude = self.rand_augment or (0, 0.0)
            self._check(
                "aa",
                n_operations >= 1 and magnitude <= MAX_MAGNITUDE,
                "imagenet, cifar10 or rand-mM-nN with M at most 10 and N at least 1",
            )

    def _check(self, name: str, is_valid: bool, allowed: str) -> None:
        if not is_valid:
            raise InputError(
                f"must be {allowed}, got {getattr(self, name)!r}", option=f"transform.{name}"
            )

    @property
    def rand_augment(self) -> tuple[int, float] | None:
        """Number of operations and magnitude of RandAugment, or None."""
        match = re.fullmatch(r"rand-m(\d+(?:\.\d+)?)-n(\d+)", self.aa or "")
        return (int(match[2]), float(match[1])) if match else None

    @property
    def effective_crop_pct(self) -> float:
        """Value of `crop_pct`, or its default."""
        if self.crop_pct is not None:
            return self.crop_pct
        return 0.875 if self.train_crop == "random_resized_crop" else 1.0


class Normalize:
    """Conversion of uint8 pixels to floats with about zero mean and unit variance.

    Args:
        mean: Mean of each channel in [0, 1], or one number for all channels.
        std: Standard deviation of each channel, or one number for all channels.
        n_channels: Number of channels.

    Raises:
        InputError: The number of values is neither 1 nor `n_channels`.
    """

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], n_channels: int) -> None:
        for name, values in (("mean", mean), ("std", std)):
            if len(values) not in (1, n_channels):
                raise InputError(
                    f"must have 1 value or one for each of {n_channels} channels,"
                    f" got {list(values)}",
                    option=f"transform.{name}",
                )
        self.mean = torch.tensor(mean, dtype=torch.float32).expand(n_channels)
        self.std = torch.tensor(std, dtype=torch.float32).expand(n_channels)
        self._scale = (1 / (255 * self.std))[:, None, None]
        self._shift = (-self.mean / self.std)[:, None, None]

    def __call__(self, pixels: Tensor) -> Tensor:
        """Convert (..., C, H, W) uint8 to float32."""
        return pixels.to(torch.float32, copy=True).mul_(self._scale).add_(self._shift)


def resized_side(size: int, crop_pct: float) -> int:
    """Return the length to which the shorter side is resized before a center crop of `size`."""
    return math.floor(size / crop_pct + 1e-6)  # undoes the rounding of ratios such as 224 / 400


def resize_and_crop(
    pixels: Tensor, size: int, crop_pct: float, interpolation: str, crop_mode: str = "center"
) -> Tensor:
    """Resize the shorter side to size / crop_pct and crop the center.

    Args:
        pixels: (..., C, H, W) uint8.
        size: Height and width of the result.
        crop_pct: Side of the crop divided by the resized shorter side.
        interpolation: "bilinear" or "bicubic".
        crop_mode: "center", or "squash" to resize the longer side to the same length.

    Returns:
        (..., C, size, size) uint8.
    """
    # Importing torchvision takes half a second, which text tasks should not wait for.
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2 import functional as F

    side = resized_side(size, crop_pct)
    squash = crop_mode == "squash"
    current = {*pixels.shape[-2:]} if squash else {min(pixels.shape[-2:])}
    if current != {side}:
        mode = InterpolationMode(interpolation)
        target = [side, side] if squash else [side]
        pixels = F.resize(pixels, target, interpolation=mode, antialias=True)
    if pixels.shape[-2:] != (size, size):
        pixels = F.center_crop(pixels, [size, size])
    return pixels


class EvalTransform:
    """Deterministic transform from pixels to model input, for evaluation and inference.

    Args:
        config: Transform options.
        size: Height and width of the input.
        n_channels: Number of channels.
    """

    def __init__(self, config: TransformConfig, size: int, n_channels: int) -> None:
        self.size = size
        self.crop_pct = config.effective_crop_pct
        self.crop_mode = config.crop_mode
        self.interpolation = config.interpolation
        self.normalize = Normalize(config.mean, config.std, n_channels)
        # Of Python's floats: fp32 tensors would have other digits.
        self.mean = [float(x) for x in config.mean] * (n_channels // len(config.mean))
        self.std = [float(x) for x in config.std] * (n_channels // len(config.std))

    def __call__(self, pixels: Tensor | list[Tensor]) -> Tensor:
        """Transform a batch of images.

        Args:
            pixels: (B, C, H, W) uint8, or a list of (C, H, W) with any sizes.

        Returns:
            (B, C, size, size) float32.
        """
        if isinstance(pixels, Tensor):
            cropped = resize_and_crop(
                pixels, self.size, self.crop_pct, self.interpolation, self.crop_mode
            )
            return self.normalize(cropped)
        return torch.cat([self(image[None]) for image in pixels])

    def artifacts(self) -> dict[str, Any]:
        """Return the settings from which `eval_transform` builds the same transform."""
        return {
            "image_size": self.size,
            "n_channels": len(self.mean),
            "mean": list(self.mean),
            "std": list(self.std),
            "crop_pct": self.crop_pct,
            "crop_mode": self.crop_mode,
            "interpolation": self.interpolation,
        }


def eval_transform(artifacts: dict[str, Any]) -> Callable[[str | Path | Image.Image], Tensor]:
    """Return the evaluation transform of a trained model as a function of one image.

    Args:
        artifacts: Artifacts of the model's DataModule, as its checkpoint holds them.

    Returns:
        Function from an image file, or an opened image, to the model's input (C, H, W) float32. It
        raises UnreadableImage if the image cannot be decoded.

    Raises:
        InputError: The artifacts are not those of an image model.
    """
    required = ("image_size", "n_channels", "mean", "std", "crop_pct", "crop_mode", "interpolation")
    for key in required:
        if key not in artifacts:
            raise InputError(
                "must be in the checkpoint to prepare images, got a checkpoint without it",
                option=key,
            )
    n_channels = artifacts["n_channels"]
    if n_channels not in PIL_MODES:
        raise InputError(
            f"must be 1 or 3 to read image files, got {n_channels}", option="n_channels"
        )
    config = TransformConfig(
        mean=tuple(artifacts["mean"]),
        std=tuple(artifacts["std"]),
        crop_pct=artifacts["crop_pct"],
        crop_mode=artifacts["crop_mode"],
        interpolation=artifacts["interpolation"],
    )
    transform = EvalTransform(config, artifacts["image_size"], n_channels)

    def prepare(image: str | Path | Image.Image) -> Tensor:
        location = str(image) if isinstance(image, str | Path) else "opened image"
        return transform([decode(image, n_channels, location)])[0]

    return prepare
