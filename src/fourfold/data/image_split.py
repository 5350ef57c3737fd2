"""A split of images as a data set of whole batches.

Legend: N images, C channels, H height, W width.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fourfold.core.errors import InputError
from fourfold.data.augment import Augment, Mix
from fourfold.data.batch import ImageBatch
from fourfold.data.datamodule import BatchDataset
from fourfold.data.image_files import IN_MEMORY
from fourfold.data.image_sets import Images
from fourfold.data.sampler import Plan
from fourfold.data.transforms import EvalTransform


class ImageSplit(BatchDataset):
    """A split whose batches are model input.

    Args:
        images: the images.
        plan: of the batches.
        n_channels: 1 or 3.
        change: Augment for training, EvalTransform otherwise.
        mix: mixup or CutMix of each batch, for training.
    """

    plan: Plan

    def __init__(
        self,
        images: Images,
        plan: Plan,
        n_channels: int,
        change: Augment | EvalTransform,
        mix: Mix | None = None,
    ) -> None:
        self.images, self.plan, self.n_channels = images, plan, n_channels
        self.change, self.mix = change, mix
        self.decoded: Tensor | None = None

    def keep(self, cache: str) -> None:
        """Decodes all images if `cache` says so, before workers are forked: they share the pixels.

        Raises:
            InputError: they must be cached, but cannot be.
        """
        if cache == "none":
            return
        reason = self.decode(at_most=IN_MEMORY if cache == "auto" else 1 << 62)
        if reason and cache == "memory":
            raise InputError(f"The images of {self.images.origin} cannot be cached: {reason}.")

    def decode(self, at_most: int) -> str | None:
        """Decodes all images into one tensor, once.

        Args:
            at_most: bytes that it may take.

        Returns:
            None, or the reason why the images stay encoded.

        Raises:
            UnreadableImage: one is corrupt.
        """
        if self.decoded is not None:
            return None
        first = self.images.pixels(0, self.n_channels)
        needed = len(self.images) * first.numel()
        if needed > at_most:
            return f"decoded they take {needed / 2**30:.1f} GiB"
        decoded = torch.empty(len(self.images), *first.shape, dtype=torch.uint8)
        for row in range(len(self.images)):
            pixels = self.images.pixels(row, self.n_channels)
            if pixels.shape != first.shape:
                sizes = " and ".join(f"{p.shape[2]}x{p.shape[1]}" for p in (first, pixels))
                return f"they differ in size: {sizes} ({self.images.name(row)})"
            decoded[row] = pixels
        self.decoded = decoded
        return None

    def batch(self, index: np.ndarray, epoch: int, position: int) -> ImageBatch:
        """The images of rows `index`, changed as this epoch has it.

        A number of N or more means another copy of row `index` % N: the same image, changed in a
        way of its own.
        """
        images, labels = (
            self._mixed(self.mix, index, epoch) if self.mix else self._changed(index, epoch)
        )
        rows = torch.from_numpy(index % len(self.images))
        return ImageBatch(images, labels, rows, epoch, position)

    def _changed(self, index: np.ndarray, epoch: int) -> tuple[Tensor, Tensor]:
        """(B, C, H, W) and labels (B,)."""
        rows = torch.from_numpy(index % len(self.images))
        pixels: Tensor | list[Tensor]
        if self.decoded is not None:
            pixels = self.decoded[rows]
        else:
            pixels = [self.images.pixels(int(row), self.n_channels) for row in rows]
        if isinstance(self.change, Augment):
            images = self.change(pixels, epoch, index)
        else:
            images = self.change(pixels)
        return images, self.images.labels[rows]

    def _mixed(self, mix: Mix, index: np.ndarray, epoch: int) -> tuple[Tensor, Tensor]:
        """(B, C, H, W) and probabilities (B, K); partners that are elsewhere are read, too."""
        partners = self.plan.partners(index, epoch)
        rows = np.concatenate([index, np.setdiff1d(partners, index)])
        place = {row: i for i, row in enumerate(rows.tolist())}
        where = torch.tensor([place[row] for row in partners.tolist()])
        images, labels = self._changed(rows, epoch)
        return mix(images, labels, where, np.minimum(index, partners), epoch)
