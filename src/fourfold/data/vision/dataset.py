"""ImageDataset: one split of images that makes transformed batches, with a cache of pixels.

Shapes: N images, C channels, H height, W width.
"""

import numpy as np
import torch
from torch import Tensor

from fourfold.data.loading.batch_order import LengthBucketedOrder
from fourfold.data.loading.batches import ImageBatch
from fourfold.data.loading.datamodule import BatchedDataset
from fourfold.data.vision.augment import Augmentation, MixupCutmix
from fourfold.data.vision.image_stores import ImageStore
from fourfold.data.vision.transforms import EvalTransform
from fourfold.errors import InputError

AUTO_CACHE_BYTES = 2 << 30  # largest cache with cache="auto"


class ImageDataset(BatchedDataset):
    """Split of images whose batches are model input.

    Args:
        images: Images and labels.
        order: Order of the batches.
        n_channels: 1 or 3.
        transform: Augmentation for training, otherwise EvalTransform.
        mix: MixUp or CutMix of each batch, for training.
    """

    order: LengthBucketedOrder

    def __init__(
        self,
        images: ImageStore,
        order: LengthBucketedOrder,
        n_channels: int,
        transform: Augmentation | EvalTransform,
        mix: MixupCutmix | None = None,
    ) -> None:
        self.images = images
        self.order = order
        self.n_channels = n_channels
        self.transform = transform
        self.mix = mix
        self.decoded: Tensor | None = None

    def fill_cache(self, cache: str) -> None:
        """Decode all images as `cache` requires, before workers are forked, which share the pixels.

        Args:
            cache: "memory", "none", or "auto" for a cache of up to 2 GiB.

        Raises:
            InputError: `cache` is "memory", but the images have different sizes.
            UnreadableImage: An image cannot be decoded.
        """
        if cache == "none" or self.decoded is not None:
            return
        first = self.images.pixels(0, self.n_channels)
        if cache == "auto" and len(self.images) * first.numel() > AUTO_CACHE_BYTES:
            return
        decoded = torch.empty(len(self.images), *first.shape, dtype=torch.uint8)
        for row in range(len(self.images)):
            pixels = self.images.pixels(row, self.n_channels)
            if pixels.shape != first.shape:
                if cache == "auto":
                    return
                sizes = " and ".join(f"{p.shape[2]}x{p.shape[1]}" for p in (first, pixels))
                location = self.images.location(row)
                raise InputError(
                    f"must not be memory for images of different sizes: {sizes} ({location})",
                    option="data.cache",
                )
            decoded[row] = pixels
        self.decoded = decoded

    def batch(self, rows: np.ndarray, epoch: int, position: int) -> ImageBatch:
        """Return the images of `rows`, transformed as in this epoch.

        With repeated augmentation, numbers from N on are copies: number i + k N is image i, with
        other random numbers.
        """
        if self.mix:
            images, labels = self._mixed(self.mix, rows, epoch)
        else:
            images, labels = self._transformed(rows, epoch)
        return ImageBatch(images, labels, torch.from_numpy(rows % len(self)), epoch, position)

    def _transformed(self, rows: np.ndarray, epoch: int) -> tuple[Tensor, Tensor]:
        """Return images (B, C, H, W) and labels (B,)."""
        stored = torch.from_numpy(rows % len(self.images))
        pixels: Tensor | list[Tensor]
        if self.decoded is not None:
            pixels = self.decoded[stored]
        else:
            pixels = [self.images.pixels(int(row), self.n_channels) for row in stored]
        if isinstance(self.transform, Augmentation):
            images = self.transform(pixels, epoch, rows)
        else:
            images = self.transform(pixels)
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
