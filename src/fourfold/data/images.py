"""Image classification data: `ImageData`.

Legend: K classes.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import DataLoader

from fourfold.core.errors import InputError
from fourfold.data.augment import Augment, Mix
from fourfold.data.batch import ImageBatch
from fourfold.data.datamodule import BatchDataset, EpochData, batch_sizes
from fourfold.data.image_sets import Images, cut
from fourfold.data.image_sources import Splits, open_source
from fourfold.data.image_split import ImageSplit
from fourfold.data.pixels import MODES
from fourfold.data.repeats import RepeatedPlan
from fourfold.data.sampler import Plan
from fourfold.data.transforms import EvalTransform, TransformConfig


class ImageData(EpochData):
    """Images with a class each.

    A folder may hold Parquet files (`train.parquet` or `train-*.parquet`, likewise val and test),
    the IDX files of MNIST, `train/`, `val/`, `test/` with a folder for each class, or just the
    class folders. A split that is missing: `val` is cut from `train`; `test` is cut from it too if
    there is neither, and is the same as a given `val` otherwise, as is the custom for ImageNet.

    Args:
        source: "digits" (embedded), a path, "torchvision:NAME" or "datasets:NAME"; a relative path
            that is not here is looked up under $FOURFOLD_DATA.
        batch_size: images of a training batch.
        eval_batch_size: of a validation or test batch; None = batch_size.
        transform: what happens to the images.
        n_channels: 1 or 3; None = 1 for digits and IDX files, 3 otherwise. Images are converted.
        val_fraction: share of each training class for `val` where there is none.
        test_fraction: likewise for `test`.
        n_train: training images that are kept of those that there are then, of each class the
            same share; None = all.
        repeats: how often a training image comes in an epoch, each time changed otherwise; the
            epoch is no longer for it, but has fewer of the images (repeated augmentation).
        split_seed: decides which images these are (apart from `seed`, so that runs can be
            compared).
        cache: memory = all images decoded once, none = when needed, auto = memory for up to 2 GiB.
        image_column: of Parquet files and `datasets`.
        label_column: likewise.
        download: let torchvision fetch what is missing.
        seed: decides order, augmentation and mixing, together with the epoch.
        num_workers: processes that prepare batches.

    Raises:
        InputError: on `setup`, if the images are not what they should be; corrupt ones are found
            when they are first decoded.
    """

    batch_class = ImageBatch

    def __init__(
        self,
        source: str = "digits",
        batch_size: int = 128,
        eval_batch_size: int | None = None,
        transform: TransformConfig | None = None,
        n_channels: int | None = None,
        val_fraction: float = 0.1,
        test_fraction: float = 0.1,
        n_train: int | None = None,
        repeats: int = 1,
        split_seed: int = 0,
        cache: Literal["auto", "memory", "none"] = "auto",
        image_column: str = "image",
        label_column: str = "label",
        download: bool = False,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__(seed=seed, num_workers=num_workers)
        if n_channels is not None and n_channels not in MODES:
            raise InputError(f"n_channels must be 1 or 3, not {n_channels}.")
        if repeats < 1:
            raise InputError(f"repeats must be at least 1, not {repeats}.")
        self.source, self.download, self.cache = source, download, cache
        self.columns = (image_column, label_column)
        self.sizes = batch_sizes(batch_size, eval_batch_size)
        self.fractions, self.split_seed = (val_fraction, test_fraction), split_seed
        self.n_train, self.repeats = n_train, repeats
        self.transform = transform or TransformConfig()
        self._n_channels = n_channels

    def prepare_data(self) -> None:
        """Downloads, where that is asked for; Lightning has one process of a machine do it."""
        if self.download:
            open_source(self.source, *self.columns, self.download)

    def build(self) -> dict[str, BatchDataset]:
        found = open_source(self.source, *self.columns, self.download)
        _require_all_classes(found["train"])
        images = self._complete(found)
        train, config = images["train"], self.transform
        self._class_names = train.class_names
        self._n_channels = channels = self._n_channels or train.n_channels
        self._size = size = config.size or native_size(train, channels)
        same = EvalTransform(config, size, channels)
        mix = (
            Mix(config, len(train.class_names), self.seed)
            if config.mixup or config.cutmix
            else None
        )
        splits: dict[str, BatchDataset] = {
            name: ImageSplit(part, self._plan(part, shuffle=False), channels, same)
            for name, part in images.items()
        }
        augment = Augment(config, size, channels, self.seed)
        splits["train"] = ImageSplit(train, self._plan(train, shuffle=True), channels, augment, mix)
        self.parts = images
        return splits

    def _complete(self, splits: Splits) -> Splits:
        """All three splits: those missing are cut from the training images."""
        val_fraction, test_fraction = self.fractions
        train, val, test = splits["train"], splits.get("val"), splits.get("test")
        if test is None and val is not None:
            test = val
        if test is None:
            train, test = cut(train, test_fraction, self.split_seed)
            val_fraction /= 1 - test_fraction  # of what is left
        if val is None:
            train, val = cut(train, val_fraction, self.split_seed + 1)
        return {"train": self._few(train), "val": val, "test": test}

    def _few(self, train: Images) -> Images:
        if self.n_train is None or self.n_train == len(train):
            return train
        if not 1 <= self.n_train < len(train):
            raise InputError(
                f"n_train is {self.n_train}, but {train.origin} has {len(train)} images to train on"
            )
        few = cut(train, self.n_train / len(train), self.split_seed + 2)[1]
        _require_all_classes(few)
        return few

    def _plan(self, images: Images, shuffle: bool) -> Plan:
        rows = self.sizes["train" if shuffle else "other"]
        if shuffle and self.repeats > 1:
            return RepeatedPlan(len(images), self.repeats, max_rows=rows, seed=self.seed)
        return Plan(np.ones(len(images)), max_rows=rows, seed=self.seed, shuffle=shuffle)

    def _loader(self, name: str, start: tuple[int, int] = (0, 0)) -> DataLoader[Any]:
        split = self.split(name)
        if isinstance(split, ImageSplit):
            split.keep(self.cache)
        return super()._loader(name, start)

    @property
    def class_names(self) -> list[str]:
        """K names."""
        self.setup()
        return self._class_names

    @property
    def n_classes(self) -> int:
        """K."""
        return len(self.class_names)

    @property
    def image_size(self) -> int:
        """Side of the model's input."""
        self.setup()
        return self._size

    @property
    def n_channels(self) -> int:
        """Channels of the model's input."""
        self.setup()
        assert self._n_channels is not None
        return self._n_channels

    def artifacts(self) -> dict[str, Any]:
        """What `eval_transform` and a classifier's output need."""
        change = EvalTransform(self.transform, self.image_size, self.n_channels)
        return {"class_names": list(self.class_names), **change.described()}


def _require_all_classes(train: Images) -> None:
    counts = torch.bincount(train.labels, minlength=len(train.class_names))
    if len(counts) < 2:
        raise InputError(f"{train.origin} has a single class: {train.class_names[0]!r}.")
    if not counts.all():
        name = train.class_names[int(counts.argmin())]
        raise InputError(f"The class {name!r} has no training images in {train.origin}.")


def native_size(images: Images, n_channels: int) -> int:
    """Side of the first image, which must be square."""
    height, width = images.pixels(0, n_channels).shape[-2:]
    if height != width:
        raise InputError(
            f"The image {images.name(0)} is not square ({width}x{height}): set transform.size."
        )
    return height
