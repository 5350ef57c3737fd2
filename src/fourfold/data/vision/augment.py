"""Random image transforms as functions of seed and epoch: Augmentation and MixupCutmix.

The random numbers of an image are a function of the seed, the epoch and the index of the image. The
augmented images are therefore the same for any number of workers, for any batch size, and in a
resumed run. Crops and flips are computed for a whole batch at once. The transforms of torchvision
run on one image at a time, and draw from the global generator of the CPU, which is seeded for each
image and restored after each batch.

Shapes: B images, C channels, H height, W width, K classes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fourfold.core.validation import ImageSize, height_width
from fourfold.data.loading.counter_rng import bits, unit
from fourfold.data.vision.eval_transforms import Normalize, TransformConfig, resize_and_crop

# Index of each of the random numbers of an image, by purpose.
_N_NUMBERS = 5
_CROP_ROW, _CROP_COLUMN, _FLIP, _TORCHVISION, _ERASE = range(_N_NUMBERS)
_PAIR = 2  # distinguishes the generators of pairs from those of rows


def pad_and_crop(images: Tensor, padding: int, rows: Tensor, columns: Tensor) -> Tensor:
    """Pad images (B, C, H, W) with zeros, and crop each at its own position to its original size.

    `rows` and `columns` (B,) are the upper and left edges in the padded image, from 0 to 2 *
    padding.
    """
    height, width = images.shape[-2:]
    windows = F.pad(images, [padding] * 4).unfold(2, height, 1).unfold(3, width, 1)
    return windows[torch.arange(len(images)), :, rows, columns]


@dataclass(eq=False)
class Augmentation:
    """Random transforms of single training images, from pixels to model input.

    `MixupCutmix` can mix pairs of the resulting images afterwards.

    Args:
        size: Height and width of the result in pixels, or the side of a square.
        n_channels: Number of channels C, 1 or 3.
        seed: Seed of the random numbers, which also depend on the epoch and the image.
    """

    config: TransformConfig
    size: ImageSize
    n_channels: int
    seed: int

    def __post_init__(self) -> None:
        # Imported late, as in `resize_and_crop`.
        from torchvision.transforms import InterpolationMode, v2

        config, self.height_width = self.config, height_width(self.size)
        self.normalize = Normalize(config.mean, config.std, self.n_channels)
        bilinear = InterpolationMode.BILINEAR
        steps: list[Callable[[Tensor], Tensor]] = []
        fill = (255 * self.normalize.mean).tolist()  # 0 after normalization
        if config.train_crop == "random_resized_crop":
            mode = InterpolationMode(config.interpolation)
            area = (config.scale_min, 1)
            steps.append(v2.RandomResizedCrop(self.height_width, area, interpolation=mode))
        if config.rand_augment:
            n_operations, magnitude = config.rand_augment
            # Magnitude 10 is level 30 of torchvision's 31 levels.
            steps.append(v2.RandAugment(n_operations, round(3 * magnitude), 31, bilinear, fill))
        elif config.aa:
            steps.append(v2.AutoAugment(v2.AutoAugmentPolicy(config.aa), bilinear, fill))
        if strength := config.color_jitter:
            steps.append(v2.ColorJitter(strength, strength, strength))
        self.per_image = v2.Compose(steps) if steps else None
        self.erase = v2.RandomErasing(p=config.reprob, value="random") if config.reprob else None

    def __call__(self, pixels: Tensor | list[Tensor], epoch: int, rows: np.ndarray) -> Tensor:
        """Augment a batch, and return normalized images (B, C, *size) float32.

        Args:
            pixels: (B, C, H, W) uint8, or a list of B images (C, H, W) uint8 of any sizes.
            epoch: Index of the epoch, from 0.
            rows: (B,) index of each image in the split, with which its random numbers change. With
                repeated augmentation, the index i + k N means copy k of image i of N images.
        """
        numbers = bits(self.seed, epoch, rows, _N_NUMBERS)
        if self.config.train_crop != "random_resized_crop":
            sizes = (self.height_width, self.height_width)
            pixels = resize_and_crop(pixels, *sizes, self.config.interpolation)
            if self.config.train_crop == "pad_crop":
                padding = max(1, min(self.height_width) // 8)
                offsets = unit(numbers[:, [_CROP_ROW, _CROP_COLUMN]]) * (2 * padding + 1)
                rows_columns = torch.from_numpy(offsets.astype(np.int64)).unbind(1)
                pixels = pad_and_crop(pixels, padding, *rows_columns)
        if self.per_image:
            pixels = apply_seeded(self.per_image, pixels, numbers[:, _TORCHVISION])
        assert isinstance(pixels, Tensor)  # all images have one size
        if self.config.flip:
            is_flipped = torch.from_numpy(unit(numbers[:, _FLIP]) < 0.5)[:, None, None, None]
            pixels = torch.where(is_flipped, pixels.flip(-1), pixels)
        images = self.normalize(pixels)
        return apply_seeded(self.erase, images, numbers[:, _ERASE]) if self.erase else images


def apply_seeded(
    transform: Callable[[Tensor], Tensor], images: Tensor | list[Tensor], seeds: np.ndarray
) -> Tensor:
    """Transform each image with its own seed (B,) uint64 of the CPU's global generator."""
    results = []
    with torch.random.fork_rng(devices=[]):
        for image, seed in zip(images, seeds.tolist(), strict=True):
            # `torch.manual_seed` would also seed the GPU's generator, which dropout uses.
            torch.default_generator.manual_seed(seed)
            results.append(transform(image))
    return torch.stack(results)


@dataclass(eq=False)
class MixupCutmix:
    """Function that mixes pairs of images by MixUp or CutMix.

    MixUp replaces the images a and b of a pair by lam a + (1 - lam) b and lam b + (1 - lam) a, with
    one random lam for the pair. CutMix lets a and b exchange the pixels of one random rectangle.
    `mixup` or `cutmix` of the config must be above 0.
    """

    config: TransformConfig
    n_classes: int
    seed: int

    def __call__(
        self, images: Tensor, labels: Tensor, partners: Tensor, pairs: np.ndarray, epoch: int
    ) -> tuple[Tensor, Tensor]:
        """Mix each of the B images of a batch with its partner, the other image of its pair.

        Pairs do not depend on the batch size, so a partner may be in another batch. Such a partner
        is part of `images`, but its mixed image is not returned.

        Args:
            images: (R, C, H, W), the B images of the batch, followed by the R - B partners that are
                not in the batch.
            labels: (R,) long, class of each image in `images`, or several labels (R, K) of each.
            partners: (B,) long, index in `images` of the partner of each image of the batch.
            pairs: (B,) number of the pair of each image of the batch, which seeds its random
                numbers: the smaller index in the split of the two partners.
            epoch: Index of the epoch, from 0.

        Returns:
            Mixed images of the batch (B, C, H, W), and their class probabilities (B, K).
        """
        own = slice(len(partners))
        shares = self._shares(pairs, epoch, *images.shape[-2:])  # (B, 1, H, W)
        own_share = shares.flatten(1).mean(1, keepdim=True)  # (B, 1)
        several = labels.is_floating_point()  # (R, K)
        targets = (labels if several else F.one_hot(labels, self.n_classes)).to(own_share.dtype)
        mixed = torch.lerp(images[partners], images[own], shares)
        return mixed, torch.lerp(targets[partners], targets[own], own_share)

    def _shares(self, pairs: np.ndarray, epoch: int, height: int, width: int) -> Tensor:
        """Return the weight of each image, at each pixel, in its mixture, (B, 1, H, W).

        With MixUp, all pixels have the weight lam. With CutMix, it is 0 in a rectangle of 1 - lam
        times the area, which is clipped at the edges, and 1 elsewhere.
        """
        config = self.config
        cutmix_probability = (config.mixup_switch if config.mixup else 1.0) * (config.cutmix > 0)
        distinct, index = np.unique(pairs, return_inverse=True)
        shares = torch.ones(len(distinct), 1, height, width)
        for share, pair in zip(shares, distinct.tolist(), strict=True):
            rng = np.random.default_rng([self.seed, epoch, pair, _PAIR])
            if rng.random() < cutmix_probability:
                lam = rng.beta(config.cutmix, config.cutmix)
                y, x = int(rng.integers(height)), int(rng.integers(width))
                half_height = round(0.5 * height * (1 - lam) ** 0.5)
                half_width = round(0.5 * width * (1 - lam) ** 0.5)
                rows = slice(max(0, y - half_height), y + half_height)
                share[:, rows, max(0, x - half_width) : x + half_width] = 0
            else:
                share.fill_(rng.beta(config.mixup, config.mixup))
        return shares[torch.from_numpy(index)]
