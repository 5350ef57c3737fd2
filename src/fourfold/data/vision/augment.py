"""Random changes of training images, each a pure function of (seed, epoch, index).

What is cheap is done to a whole batch at once, each image with its own numbers; what torchvision
does to one image at a time runs under a random state of that image, and the global state is put
back afterwards. Hence neither workers, nor batch sizes, nor a resume can change what an image
looks like in an epoch.

Legend: B images, C channels, H height, W width, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fourfold.data.noise import bits, unit
from fourfold.data.transforms import Normalize, TransformConfig, fit

# Independent numbers of one image: row and column of the crop, flip, torchvision's, erasing.
_STREAMS = 5
_ROW, _COLUMN, _FLIP, _IMAGE, _ERASE = range(_STREAMS)
_PAIR = 2  # sets the numbers of pairs apart from those of rows


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Sets the CPU's global random state, and puts it back.

    Not `torch.manual_seed`, which would seed the GPU too, and with it dropout.
    """
    generator = torch.default_generator
    state = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(state)


def shifted(images: Tensor, pad: int, rows: Tensor, columns: Tensor) -> Tensor:
    """Crops of zero-padded images: each one shifted by its own number of pixels.

    Args:
        images: (B, C, H, W).
        pad: width of the border.
        rows: (B,) long, upper edge of the crop in the padded image, 0 to 2 pad.
        columns: (B,) long, left edge.

    Returns:
        (B, C, H, W).
    """
    height, width = images.shape[-2:]
    windows = F.pad(images, [pad] * 4).unfold(2, height, 1).unfold(3, width, 1)
    return windows[torch.arange(len(images)), :, rows, columns]  # a view until here


class Augment:
    """Pixels to model input for training; `mix` for what needs the whole batch is separate.

    Args:
        config: the recipe.
        size: side of the result.
        n_channels: 1 or 3.
        seed: of the data.
    """

    def __init__(self, config: TransformConfig, size: int, n_channels: int, seed: int) -> None:
        from torchvision.transforms import v2  # late, as in `fit`

        self.config, self.size, self.seed = config, size, seed
        self.normalize = Normalize(config.mean, config.std, n_channels)
        self.one_by_one = self._one_by_one()
        self.erase = v2.RandomErasing(p=config.erase, value="random") if config.erase else None

    def _one_by_one(self) -> Callable[[Tensor], Tensor] | None:
        from torchvision.transforms import InterpolationMode, v2

        config, steps = self.config, []
        grey = (255 * self.normalize.mean).tolist()  # becomes 0 once normalised
        if config.crop == "resized":
            mode = InterpolationMode(config.interpolation)
            area = (config.crop_area, 1.0)
            steps.append(v2.RandomResizedCrop(self.size, area, interpolation=mode, antialias=True))
        if config.rand_augment:
            n, magnitude = config.rand_augment
            steps.append(
                v2.RandAugment(
                    n,
                    round(3 * magnitude),
                    num_magnitude_bins=31,
                    interpolation=InterpolationMode.BILINEAR,
                    fill=grey,
                )
            )
        if config.auto_augment:
            policy = v2.AutoAugmentPolicy(config.auto_augment)
            steps.append(v2.AutoAugment(policy, InterpolationMode.BILINEAR, grey))
        if strength := config.color_jitter:
            steps.append(v2.ColorJitter(strength, strength, strength))
        return v2.Compose(steps) if steps else None

    def __call__(self, pixels: Tensor | list[Tensor], epoch: int, index: np.ndarray) -> Tensor:
        """Augments a batch.

        Args:
            pixels: (B, C, H, W) uint8, or a list of (C, H, W) of any size.
            epoch: number of the epoch.
            index: (B,) row of each image.

        Returns:
            (B, C, size, size) float32.
        """
        seeds = bits(self.seed, epoch, index, _STREAMS)
        if self.config.crop == "none":
            pixels = self._fitted(pixels)
        elif self.config.crop == "padded":
            pad = max(1, self.size // 8)
            rows, columns = (
                torch.from_numpy((unit(seeds[:, k]) * (2 * pad + 1)).astype(np.int64))
                for k in (_ROW, _COLUMN)
            )
            pixels = shifted(self._fitted(pixels), pad, rows, columns)
        if self.one_by_one:
            pixels = _each(self.one_by_one, pixels, seeds[:, _IMAGE])
        assert isinstance(pixels, Tensor)  # by now all are of one size
        if self.config.flip:
            mirrored = torch.from_numpy(unit(seeds[:, _FLIP]) < 0.5)[:, None, None, None]
            pixels = torch.where(mirrored, pixels.flip(-1), pixels)
        images = self.normalize(pixels)
        return _each(self.erase, images, seeds[:, _ERASE]) if self.erase else images

    def _fitted(self, pixels: Tensor | list[Tensor]) -> Tensor:
        if isinstance(pixels, Tensor):
            return fit(pixels, self.size, 1.0, self.config.interpolation)
        return torch.cat([self._fitted(image[None]) for image in pixels])


def _each(
    change: Callable[[Tensor], Tensor], images: Tensor | list[Tensor], seeds: np.ndarray
) -> Tensor:
    changed = []
    for image, seed in zip(images, seeds.tolist(), strict=True):
        with seeded(seed):
            changed.append(change(image))
    return torch.stack(changed)


class Mix:
    """Mixup or CutMix of pairs, each drawn from (seed, epoch, pair), whatever the batches are.

    Both images of a pair are mixed with one number, or exchange one rectangle.

    Args:
        config: the recipe; `mixup` or `cutmix` must be above 0.
        n_classes: K.
        seed: of the data.
    """

    def __init__(self, config: TransformConfig, n_classes: int, seed: int) -> None:
        self.config, self.n_classes, self.seed = config, n_classes, seed

    def __call__(
        self, images: Tensor, labels: Tensor, partners: Tensor, pairs: np.ndarray, epoch: int
    ) -> tuple[Tensor, Tensor]:
        """Mixes the first B of R images with their partners.

        Args:
            images: (R, C, H, W).
            labels: (R,) long.
            partners: (B,) long, where each one's partner is.
            pairs: (B,) a number of each pair, the same for both.
            epoch: number of the epoch.

        Returns:
            Mixed images (B, C, H, W) and probabilities (B, K).
        """
        own = slice(len(partners))
        shares = self._shares(pairs, epoch, *images.shape[-2:])  # (B, 1, H, W)
        kept = shares.flatten(1).mean(1, keepdim=True)  # (B, 1)
        targets = F.one_hot(labels, self.n_classes).to(kept.dtype)
        return (
            torch.lerp(images[partners], images[own], shares),
            torch.lerp(targets[partners], targets[own], kept),
        )

    def _shares(self, pairs: np.ndarray, epoch: int, height: int, width: int) -> Tensor:
        """How much of each pixel is the image's own."""
        found, where = np.unique(pairs, return_inverse=True)
        shares = torch.ones(len(found), 1, height, width)
        for share, pair in zip(shares, found.tolist(), strict=True):
            rng = np.random.default_rng([self.seed, epoch, pair, _PAIR])
            if rng.random() < self._switch():
                lam = rng.beta(self.config.cutmix, self.config.cutmix)
                y, x = int(rng.integers(height)), int(rng.integers(width))
                rows, columns = _box(lam, y, x, share.shape)
                share[:, rows, columns] = 0
            else:
                share.fill_(rng.beta(self.config.mixup, self.config.mixup))
        return shares[torch.from_numpy(where)]

    def _switch(self) -> float:
        """Probability of CutMix."""
        if self.config.mixup and self.config.cutmix:
            return self.config.mixup_switch
        return 1.0 if self.config.cutmix else 0.0


def _box(lam: float, y: int, x: int, shape: torch.Size) -> tuple[slice, slice]:
    """Rows and columns around (y, x) that are cut out: 1 - lam of the image, where it fits in."""
    height, width = shape[-2:]
    half_height, half_width = (round(0.5 * side * (1 - lam) ** 0.5) for side in (height, width))
    return (
        slice(max(0, y - half_height), y + half_height),
        slice(max(0, x - half_width), x + half_width),
    )
