"""The image recipe of a config, and what turns pixels into the input of a trained model.

Legend: B images, C channels, H height, W width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from PIL import Image
from torch import Tensor

from fourfold.core.errors import InputError
from fourfold.data.pixels import MODES, decode


@dataclass(frozen=True)
class TransformConfig:
    """What happens to images. Training: crop, colours, flip, normalise, erase, then mix the batch.

    Args:
        size: side of the square input; None takes that of the first training image.
        crop: none (whole image), padded (shifted by up to 1/8 of the side, He et al. 2016) or
            resized (a random part at a random aspect ratio, Szegedy et al. 2015).
        crop_area: smallest part of the area that `resized` may take (0.08 in DeiT, 0.05 in
            big_vision).
        flip: mirror half of the images.
        rand_augment: (operations, magnitude), torchvision's RandAugment (Cubuk et al. 2020). The
            magnitude is on the scale of that paper's code, timm and big_vision, where 10 turns by
            30 degrees: 9 is 27 in torchvision's own 31 steps, and turns, shears, shifts, solarises
            and enhances about as timm's 9. But Posterize then keeps 4 bits, timm's increasing one
            a single bit; and there is Identity, but neither Invert nor SolarizeAdd.
        auto_augment: the policy that Cubuk et al. 2019 found for imagenet or for cifar10; None for
            none.
        color_jitter: strength of random brightness, contrast and saturation; applied beside
            `rand_augment` (timm would drop it there).
        erase: probability of filling a random rectangle with noise (Zhong et al. 2020).
        mixup: parameter of the Beta distribution of mixup (Zhang et al. 2018); 0 = off.
        cutmix: the same for CutMix (Yun et al. 2019).
        mixup_switch: probability of CutMix where both are on.
        eval_crop: side of the evaluation crop over the resized shorter side (0.875 in DeiT, 0.9 in
            timm); None = 0.875 after training on `resized` crops, which show objects larger than
            they are, else 1.
        squash: evaluate with both sides scaled to the same, as the processors of ViT and DeiT in
            transformers do, in place of cutting the longer one.
        interpolation: for resizing.
        mean: of the channels, 0 to 1; one number stands for all channels.
        std: likewise.

    Raises:
        InputError: a value outside its range.
    """

    size: int | None = None
    crop: Literal["none", "padded", "resized"] = "none"
    crop_area: float = 0.08
    flip: bool = False
    rand_augment: tuple[int, float] | None = None
    auto_augment: Literal["imagenet", "cifar10"] | None = None
    color_jitter: float = 0.0
    erase: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    mixup_switch: float = 0.5
    eval_crop: float | None = None
    squash: bool = False
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)

    def __post_init__(self) -> None:
        _require(self.size is None or self.size >= 1, "size must be at least 1", self.size)
        _require(self.crop in ("none", "padded", "resized"), "crop is unknown", self.crop)
        known = self.auto_augment in (None, "imagenet", "cifar10")
        _require(known, "auto_augment is unknown", self.auto_augment)
        known = self.interpolation in ("bilinear", "bicubic")
        _require(known, "interpolation is unknown", self.interpolation)
        for name in ("erase", "mixup_switch"):
            value = getattr(self, name)
            _require(0 <= value <= 1, f"{name} must lie between 0 and 1", value)
        for name in ("color_jitter", "mixup", "cutmix"):
            value = getattr(self, name)
            _require(value >= 0, f"{name} must not be negative", value)
        for name in ("crop_area", "eval_crop"):
            value = getattr(self, name)
            inside = value is None or 0 < value <= 1
            _require(inside, f"{name} must be above 0 and at most 1", value)
        if self.rand_augment is not None:
            n, m = self.rand_augment
            inside = n >= 1 and 0 <= m <= 10
            _require(inside, "rand_augment needs 1 operation or more, magnitude 0 to 10", (n, m))
        positive = all(s > 0 for s in self.std)
        _require(positive and len(self.std) > 0, "std must be above 0", self.std)

    @property
    def eval_ratio(self) -> float:
        """`eval_crop` with its default settled."""
        if self.eval_crop is not None:
            return self.eval_crop
        return 0.875 if self.crop == "resized" else 1.0


def _require(holds: bool, rule: str, value: object) -> None:
    if not holds:
        raise InputError(f"transform.{rule}: {value!r}.")


class Normalize:
    """uint8 pixels to floats of about zero mean and unit variance.

    Raises:
        InputError: as many values are needed as the images have channels, or one for all.
    """

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...], n_channels: int) -> None:
        for name, values in (("mean", mean), ("std", std)):
            if len(values) not in (1, n_channels):
                raise InputError(
                    f"transform.{name} has {len(values)} values for {n_channels} channels:"
                    f" {list(values)}."
                )
        self.mean = torch.tensor(mean, dtype=torch.float32).expand(n_channels)
        self.std = torch.tensor(std, dtype=torch.float32).expand(n_channels)
        self._scale = (1 / (255 * self.std))[:, None, None]
        self._shift = (-self.mean / self.std)[:, None, None]

    def __call__(self, pixels: Tensor) -> Tensor:
        """(..., C, H, W) uint8 to float32."""
        return pixels.to(torch.float32, copy=True).mul_(self._scale).add_(self._shift)


def scaled_side(size: int, ratio: float) -> int:
    """What the shorter side is scaled to before a centre of `size` is cut out: size / ratio."""
    return math.floor(size / ratio + 1e-6)  # of 224 / 400, a float, 400 is to come back


def fit(
    pixels: Tensor, size: int, ratio: float, interpolation: str, squash: bool = False
) -> Tensor:
    """Scales the shorter side to size / ratio and cuts the centre out.

    Args:
        pixels: (..., C, H, W) uint8.
        size: side of the result.
        ratio: side of the cut over the scaled shorter side.
        interpolation: "bilinear" or "bicubic".
        squash: whether the longer side is scaled to the same.

    Returns:
        (..., C, size, size) uint8.
    """
    # Here, since it takes half a second, which text need not wait for.
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2 import functional as F

    edge = scaled_side(size, ratio)
    there = {*pixels.shape[-2:]} if squash else {min(pixels.shape[-2:])}
    if there != {edge}:
        mode, sides = InterpolationMode(interpolation), [edge, edge] if squash else [edge]
        pixels = F.resize(pixels, sides, interpolation=mode, antialias=True)
    if pixels.shape[-2:] != (size, size):
        pixels = F.center_crop(pixels, [size, size])
    return pixels


class EvalTransform:
    """Pixels to model input without any randomness: the same for validation, test, `classify`."""

    def __init__(self, config: TransformConfig, size: int, n_channels: int) -> None:
        self.size, self.ratio, self.interpolation = size, config.eval_ratio, config.interpolation
        self.squash = config.squash
        self.normalize = Normalize(config.mean, config.std, n_channels)
        # As they were given: in fp32 they would have other digits.
        self.mean, self.std = (
            [float(x) for x in values] * (n_channels // len(values))
            for values in (config.mean, config.std)
        )

    def __call__(self, pixels: Tensor | list[Tensor]) -> Tensor:
        """(B, C, H, W) uint8, or a list of (C, H, W) of any size, to (B, C, size, size) float32."""
        if isinstance(pixels, Tensor):
            how = (self.size, self.ratio, self.interpolation, self.squash)
            return self.normalize(fit(pixels, *how))
        return torch.cat([self(image[None]) for image in pixels])

    def described(self) -> dict[str, Any]:
        """What `eval_transform` needs to do the same."""
        return {
            "image_size": self.size,
            "n_channels": len(self.mean),
            "mean": list(self.mean),
            "std": list(self.std),
            "eval_crop": self.ratio,
            "squash": self.squash,
            "interpolation": self.interpolation,
        }


def eval_transform(artifacts: dict[str, Any]) -> Callable[[str | Path | Image.Image], Tensor]:
    """The function from an image file, or an opened image, to model input (C, H, W) float32.

    Args:
        artifacts: of the `ImageData` a model was trained with, as its checkpoint carries them.

    Raises:
        InputError: the artifacts are not those of images; the returned function: the image is
            corrupt.
    """
    keys = ("image_size", "n_channels", "mean", "std", "eval_crop", "interpolation")
    if missing := [key for key in keys if key not in artifacts]:
        raise InputError(f"This checkpoint does not say how to prepare images: no {missing[0]!r}.")
    n_channels = artifacts["n_channels"]
    if n_channels not in MODES:
        raise InputError(f"Image files have 1 or 3 channels, but the model reads {n_channels}.")
    config = TransformConfig(
        mean=tuple(artifacts["mean"]),
        std=tuple(artifacts["std"]),
        eval_crop=artifacts["eval_crop"],
        squash=artifacts.get("squash", False),  # older checkpoints do not say
        interpolation=artifacts["interpolation"],
    )
    transform = EvalTransform(config, artifacts["image_size"], n_channels)

    def prepare(image: str | Path | Image.Image) -> Tensor:
        name = str(image) if isinstance(image, str | Path) else "given"
        return transform([decode(image, n_channels, name)])[0]

    return prepare
