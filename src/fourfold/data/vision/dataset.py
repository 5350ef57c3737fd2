"""ImageDataset: one split of images that makes transformed batches, with a cache of pixels.

Shapes: N images, B images of a batch, C channels, H height, W width, K classes.
"""

import numpy as np
import torch
from torch import Tensor

from fourfold.data.loading.batch_order import LengthBucketedOrder, RepeatedAugmentationOrder
from fourfold.data.loading.batches import ImageBatch
from fourfold.data.loading.datamodule import BatchedDataset
from fourfold.data.vision.augment import Augmentation, MixupCutmix
from fourfold.data.vision.decoding import PIL_MODES
from fourfold.data.vision.image_stores import ImageStore
from fourfold.data.vision.transforms import EvalTransform, TransformConfig
from fourfold.errors import InputError

AUTO_CACHE_BYTES = 2 << 30  # largest cache with cache="auto"


class ImageDataset(BatchedDataset):
    """Split of N images whose batches are model input.

    Args:
        images: Images and labels.
        transform: `Augmentation`, which also shuffles the images, or `EvalTransform`.
        batch_size: Number of images in a batch.
        seed: Seed of the order.
        cache: "memory" decodes all images once, "none" decodes an image when it is used, and "auto"
            decodes all images once if their pixels take at most 2 GiB.
        mix: MixUp or CutMix of each batch, for training.
        aug_repeats: Copies of each sampled image in a training epoch.
    """

    order: LengthBucketedOrder

    def __init__(
        self,
        images: ImageStore,
        transform: Augmentation | EvalTransform,
        batch_size: int,
        seed: int,
        cache: str,
        mix: MixupCutmix | None = None,
        aug_repeats: int = 1,
    ) -> None:
        self.images = images
        self.transform = transform
        self.cache = cache
        self.mix = mix
        self.decoded: Tensor | None = None
        if aug_repeats > 1:
            self.order = RepeatedAugmentationOrder(
                len(images), aug_repeats, max_rows=batch_size, seed=seed
            )
        else:
            is_train = isinstance(transform, Augmentation)
            self.order = LengthBucketedOrder(
                np.ones(len(images)), max_rows=batch_size, seed=seed, shuffle=is_train
            )

    def prepare(self) -> None:
        """Decode all images if `cache` requires it, once for all worker processes.

        Raises:
            InputError: `cache` is "memory", but the images have different sizes.
            UnreadableImage: An image cannot be decoded.
        """
        if self.cache == "none" or self.decoded is not None:
            return
        first = self._pixels(0)
        if self.cache == "auto" and len(self.images) * first.numel() > AUTO_CACHE_BYTES:
            return
        decoded = torch.empty(len(self.images), *first.shape, dtype=torch.uint8)
        for row in range(len(self.images)):
            pixels = self._pixels(row)
            if pixels.shape != first.shape:
                if self.cache == "auto":
                    return
                sizes = " and ".join(f"{p.shape[2]}x{p.shape[1]}" for p in (first, pixels))
                location = self.images.location(row)
                raise InputError(
                    f"must not be memory for images of different sizes: {sizes} ({location})",
                    option="data.cache",
                )
            decoded[row] = pixels
        self.decoded = decoded

    def _pixels(self, row: int) -> Tensor:
        return self.images.pixels(row, self.transform.n_channels)

    def batch(self, rows: np.ndarray, epoch: int, position: int) -> ImageBatch:
        """Return the images of `rows` after the transforms of an epoch.

        With repeated augmentation, row i + k N is copy k of image i. Each copy has its own random
        transforms.
        """
        if self.mix:
            images, labels = self._mixed(self.mix, rows, epoch)
        else:
            images, labels = self._transformed(rows, epoch)
        return ImageBatch(images, labels, torch.from_numpy(rows % len(self)), epoch, position)

    def _transformed(self, rows: np.ndarray, epoch: int) -> tuple[Tensor, Tensor]:
        """Return images (B, C, H, W) and labels (B,)."""
        stored = torch.from_numpy(rows % len(self.images))
        if self.decoded is not None:
            images = self.transform(self.decoded[stored], epoch, rows)
        else:
            images = self.transform([self._pixels(row) for row in stored.tolist()], epoch, rows)
        return images, self.images.labels[stored]

    def _mixed(self, mix: MixupCutmix, rows: np.ndarray, epoch: int) -> tuple[Tensor, Tensor]:
        """Return images (B, C, H, W) and class probabilities (B, K).

        Partners in other batches are read as well.
        """
        partners = self.order.mix_partners(rows, epoch)
        needed = np.concatenate([rows, np.setdiff1d(partners, rows)])
        index = {row: i for i, row in enumerate(needed.tolist())}
        partner_index = torch.tensor([index[row] for row in partners.tolist()])
        images, labels = self._transformed(needed, epoch)
        return mix(images, labels, partner_index, np.minimum(rows, partners), epoch)


def check_channels(n_channels: int | None) -> None:
    """Raise InputError unless the number of channels is None, 1 or 3."""
    if n_channels not in (None, *PIL_MODES):
        raise InputError(f"must be 1 or 3, got {n_channels}", option="data.n_channels")


def make_transforms(
    config: TransformConfig, train: ImageStore, n_channels: int | None, seed: int
) -> tuple[Augmentation, EvalTransform]:
    """Return the transforms of training and of evaluation.

    Args:
        config: Transform options; the first image decides the size if the options do not.
        train: Training images.
        n_channels: Number of channels; None means that of the stored images.
        seed: Seed of the augmentation.

    Raises:
        InputError: The size is not given and the first image is not square, or the numbers of means
            or standard deviations do not fit the channels.
    """
    n_channels = n_channels or train.n_channels
    size = config.size
    if size is None:
        size, width = train.pixels(0, n_channels).shape[-2:]
        if width != size:
            raise InputError(
                f"must be given, since {train.location(0)} is not square ({width}x{size})",
                option="data.transform.size",
            )
    return Augmentation(config, size, n_channels, seed), EvalTransform(config, size, n_channels)
