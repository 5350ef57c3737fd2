"""DataModule for masked image modelling, which chooses the visible patches of each image.

Shapes: B images of a batch, N patches of an image, V visible patches.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch

from fourfold.core.validation import height_width
from fourfold.data.loading.batches import MaskedImageBatch
from fourfold.data.loading.counter_rng import bits
from fourfold.data.loading.datamodule import BatchedDataset
from fourfold.data.vision.image_classification import ImageData, ImageDataset
from fourfold.errors import InputError

_STREAM = 1  # index of the random sequence that selects patches; the augmentation uses 0


@dataclass(eq=False)
class MaskedImageDataset(ImageDataset):
    """Dataset of images with `n_visible` of `n_patches` random visible patches, without labels."""

    n_patches: int = 0
    n_visible: int = 0

    def batch(self, rows: np.ndarray, epoch: int, position: int) -> MaskedImageBatch:
        """Return a batch of transformed images with the indices of their visible patches.

        The visible patches of an image are a function of the seed, the epoch and the row.
        """
        batch: Any = super().batch(rows, epoch, position)
        noise = bits(self.seed, epoch, rows, self.n_patches, _STREAM)
        visible = torch.from_numpy(np.sort(noise.argsort(axis=1)[:, : self.n_visible], axis=1))
        return MaskedImageBatch(batch.images, visible, batch.rows, epoch, position)


@dataclass(eq=False, repr=False)
class MaskedImageData(ImageData):
    """DataModule for images of which a model sees some patches only (MAE; He et al. 2021).

    The labels of the source are not used, except for splits that keep the shares of the classes.

    Args:
        patch_size: Side of a patch in pixels, which must be that of the model.
        mask_ratio: Share of the patches that are masked. The number of visible patches, which is
            the remaining share of all patches, is rounded down.

    Example:
        >>> data = MaskedImageData("digits", patch_size=2, mask_ratio=0.75, batch_size=16)
        >>> batch = next(iter(data.train_dataloader()))
        >>> batch.images.shape, batch.visible.shape  # 4 of 16 patches
        (torch.Size([16, 1, 8, 8]), torch.Size([16, 4]))
    """

    batch_class = MaskedImageBatch
    dataset_class = MaskedImageDataset

    _: KW_ONLY
    patch_size: int = 16
    mask_ratio: float = 0.75

    def build(self) -> dict[str, BatchedDataset]:
        datasets: dict[str, Any] = super().build()
        height, width = height_width(self._evaluation.size)
        n_patches = height * width // self.patch_size**2
        n_visible = int(n_patches * (1 - self.mask_ratio))
        if not 0 < n_visible < n_patches:
            message = f"must leave at least one of {n_patches} patches visible and one masked"
            raise InputError(f"{message}, got {self.mask_ratio}", option="data.mask_ratio")
        for dataset in datasets.values():
            dataset.n_patches, dataset.n_visible = n_patches, n_visible
        return datasets
