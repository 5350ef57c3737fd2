"""DataModule for image classification, with a dataset that caches decoded pixels.

Shapes: N images, B images of a batch, C channels, H height, W width, K classes.
"""

from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fourfold.core.validation import ImageSize, check_absent, check_positive, check_range
from fourfold.data.loading.batches import ImageBatch
from fourfold.data.loading.datamodule import BatchedDataset, HasClasses
from fourfold.data.loading.length_bucketing import LengthBucketedOrder, RepeatedAugmentationOrder
from fourfold.data.readers.labels import parse_labels
from fourfold.data.vision.augment import Augmentation, MixupCutmix
from fourfold.data.vision.eval_transforms import EvalTransform, TransformConfig
from fourfold.data.vision.image_stores import ImageStore, stratified_split
from fourfold.data.vision.sources import open_source
from fourfold.errors import InputError

AUTO_CACHE_BYTES = 2 << 30  # largest size of all decoded images with cache="auto"


@dataclass(eq=False)
class ImageDataset(BatchedDataset):
    """Dataset of the N images of one split, whose batches hold transformed images and labels.

    Args:
        transform: Transform from pixels to model input, an `Augmentation` in training.
        seed: Seed of the captions or patches that a subclass selects at random.
        cache: "memory", "none" or "auto", as in `ImageData`.
        mix: MixUp or CutMix of each training batch; None does not mix images.
    """

    images: ImageStore
    transform: Augmentation | EvalTransform
    order: LengthBucketedOrder
    seed: int
    cache: str
    mix: MixupCutmix | None = None

    def __post_init__(self) -> None:
        self.decoded: Tensor | None = None
        self.labels = self.images.labels

    def location(self, row: int) -> str:
        """Return the location of the image with the index `row`, for messages."""
        return self.images.location(row)

    def prepare(self) -> None:
        """Decode all images into memory that worker processes share, as `cache` says.

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
            if pixels.shape == first.shape:
                decoded[row] = pixels
            elif self.cache == "auto":
                return
            else:
                message = f"must not be memory, since {self.images.location(row)} has another size"
                raise InputError(message, option="data.cache")
        self.decoded = decoded

    def _pixels(self, row: int) -> Tensor:
        return self.images.pixels(row, self.transform.n_channels)

    def batch(self, rows: np.ndarray, epoch: int, position: int) -> NamedTuple:
        """Return a batch of transformed images with their labels.

        The labels are class indices (B,), numbers (B,), or 1 or 0 for each label (B, K). With MixUp
        or CutMix, they are class probabilities (B, K), and each image is mixed with its neighbour
        in the shuffled order of the epoch, which may be in another batch and is then read for this
        batch, too. With repeated augmentation, the row i + k N means copy k of image i, and each
        copy has its own random transforms.
        """
        if self.mix is None:
            images, labels = self.transformed(rows, epoch)
        else:
            # The random numbers of a pair depend on the pair, and not on the batch size.
            partners = self.order.mix_partners(rows, epoch)
            needed = np.concatenate([rows, np.setdiff1d(partners, rows)])
            index = {row: i for i, row in enumerate(needed.tolist())}
            partner_index = torch.tensor([index[row] for row in partners.tolist()])
            all_images, classes = self.transformed(needed, epoch)
            pairs = np.minimum(rows, partners)
            images, labels = self.mix(all_images, classes, partner_index, pairs, epoch)
        return ImageBatch(images, labels, torch.from_numpy(rows % len(self)), epoch, position)

    def transformed(self, rows: np.ndarray, epoch: int) -> tuple[Tensor, Tensor]:
        """Return transformed images (B, C, H, W) and their class indices (B,), without mixing."""
        stored = torch.from_numpy(rows % len(self.images))
        if self.decoded is None:
            pixels: Tensor | list[Tensor] = [self._pixels(row) for row in stored.tolist()]
        else:
            pixels = self.decoded[stored]
        return self.transform(pixels, epoch, rows), self.labels[stored]


def make_transforms(
    config: TransformConfig, train: ImageStore, n_channels: int | None, seed: int
) -> tuple[Augmentation, EvalTransform]:
    """Return the random transform of training and the deterministic transform of evaluation.

    If `config.size` is None, the images get the size of the first image of `train`.

    Raises:
        InputError: `config.size` is None and the first training image is not square, or the number
            of means or of standard deviations is neither 1 nor the number of channels.
    """
    n_channels = n_channels or train.n_channels
    size = config.size
    if size is None:
        height, size = train.pixels(0, n_channels).shape[-2:]
        if height != size:
            message = f"must be given, since {train.location(0)} is not square ({size}x{height})"
            raise InputError(message, option="data.transform.size")
    return Augmentation(config, size, n_channels, seed), EvalTransform(config, size, n_channels)


@dataclass(eq=False, repr=False)
class ImageData(HasClasses):
    """DataModule for images with one class, several labels or a number each.

    Splits that the source lacks are made as follows:

    - Without a validation split, a share of the training split is held out for validation.
    - Without a validation and a test split, shares of the training split are held out for both.
    - With a validation split and no test split, the validation split is tested, as is common for
      ImageNet.

    Args:
        source: "digits" (built-in images), "datasets:NAME" (Hugging Face), or the path of a Parquet
            file, a table (.csv, .tsv or .jsonl) or a folder. A relative path may also lie under
            $FOURFOLD_DATA. A row of a table has the path of an image, relative to the folder of the
            table, and its label. A folder has one of four forms. It holds Parquet files
            (`train.parquet` or `train-*.parquet`, and the same for val and test), or tables (such
            as `train.csv`), or folders train, val and test with a subfolder for each class, or a
            subfolder for each class. A single file and a folder of the last form have only a
            training split.
        batch_size: Number of images per training batch.
        eval_batch_size: Number of images per validation or test batch; None means `batch_size`.
        transform: Image transforms; None means the defaults of `TransformConfig`.
        n_channels: Number of channels, 1 or 3, to which images are converted; None means 1 for
            digits, otherwise 3, and `setup` replaces it by this number.
        val_fraction: Share of each class that is held out for validation, if the source has no
            validation split.
        test_fraction: Share of each class that is held out for the test, if the source has neither
            a validation nor a test split.
        classes: Names of the classes to keep, in the order of their indices; None keeps all.
        n_train: Approximate number of training images to keep after other splits are held out. The
            proportions of the classes are kept. None keeps all images.
        aug_repeats: Number of copies of each sampled training image in an epoch, each with its own
            random transforms (repeated augmentation). The length of an epoch does not change, so
            fewer distinct images are sampled.
        split_seed: Seed of the splits. Runs with different values of `seed` have the same splits.
        cache: "memory" decodes all images once and keeps their pixels; all images must then have
            the same size. "none" decodes an image each time the image is used. "auto" means
            "memory" if all images have the same size and take at most 2 GiB, otherwise "none".
        image_column: Name of the image column of tables, Parquet files and Hugging Face datasets.
        label_column: Name of the label column of tables, Parquet files and Hugging Face datasets.
        label_separator: Text that separates the labels in the label column of a table, such as ","
            or " ", if an image has any number of labels. None means one label per image.
        regression: Predict the label in a table as a number, instead of a class.
        download: Not used; the config.yaml of a run of version 0.2.0 contains it.

    Example:
        >>> data = ImageData("digits", batch_size=16)
        >>> batch = next(iter(data.train_dataloader()))
        >>> batch.images.shape, data.n_classes
        (torch.Size([16, 1, 8, 8]), 10)
    """

    batch_class: ClassVar[type] = ImageBatch
    dataset_class: ClassVar[type[ImageDataset]] = ImageDataset

    source: str = "digits"
    _: KW_ONLY
    batch_size: int = 128
    eval_batch_size: int | None = None
    transform: TransformConfig | None = None
    n_channels: Literal[1, 3] | None = None
    val_fraction: float = 0.1
    test_fraction: float = 0.1
    classes: list[str] | None = None
    n_train: int | None = None
    aug_repeats: int = 1
    split_seed: int = 0
    cache: Literal["auto", "memory", "none"] = "auto"
    image_column: str = "image"
    label_column: str = "label"
    label_separator: str | None = None
    regression: bool = False
    download: bool = False
    seed: int = 0
    num_workers: int = 0

    def __post_init__(self) -> None:
        super().__init__(self.seed, self.num_workers)
        check_positive("data.aug_repeats", self.aug_repeats)

    def read(self) -> dict[str, ImageStore]:
        """Open the splits of the source, of which "train" is required, with the chosen classes."""
        parse = partial(parse_labels, separator=self.label_separator, regression=self.regression)
        splits = open_source(self.source, self.image_column, self.label_column, parse)
        if self.regression or self.label_separator:
            check_absent("several labels or a regression", classes=self.classes)
            if not splits["train"].labels.is_floating_point():
                raise InputError("must be a table of images and labels", option="data.source")
        if self.classes is None:
            return splits
        return {name: store.with_classes(self.classes) for name, store in splits.items()}

    def build(self) -> dict[str, BatchedDataset]:
        """Open the source, and return the datasets of the splits "train", "val" and "test".

        Raises:
            InputError: The source cannot be read or divided, there are fewer than two classes, or a
                class has no training images.
        """
        splits = self.read()
        self.check_classes(splits["train"])
        train, val, test = splits["train"], splits.get("val"), splits.get("test")
        val_fraction = self.val_fraction
        test = test or val
        if test is None:
            train, test = stratified_split(train, self.test_fraction, self.split_seed)
            val_fraction /= 1 - self.test_fraction  # as a share of the remaining images
        if val is None:
            train, val = stratified_split(train, val_fraction, self.split_seed + 1)
        if self.n_train is not None and self.n_train != len(train):
            check_range("data.n_train", self.n_train, minimum=1, maximum=len(train))
            _, train = stratified_split(train, self.n_train / len(train), self.split_seed + 2)
            self.check_classes(train)
        self.split_sources = {"train": train, "val": val, "test": test}
        self._class_names = train.class_names

        config = self.transform or TransformConfig()
        augmentation, self._evaluation = make_transforms(config, train, self.n_channels, self.seed)
        self.n_channels = self._evaluation.n_channels  # type: ignore[assignment]
        mixes = config.mixup > 0 or config.cutmix > 0
        if mixes and self.regression:
            raise InputError("must have neither for a regression", option="mixup and cutmix")
        mix = MixupCutmix(config, len(train.class_names), self.seed) if mixes else None
        rows = self.batch_sizes["train"]
        order = self.batch_order("train", np.ones(len(train)), max_rows=rows)
        if self.aug_repeats > 1:
            options: Any = {"max_rows": rows, "seed": self.seed}
            order = RepeatedAugmentationOrder(len(train), self.aug_repeats, **options)
        made = self.dataset_class(train, augmentation, order, self.seed, self.cache, mix)
        datasets: dict[str, BatchedDataset] = {"train": made}
        for name, images in (("val", val), ("test", test)):
            order = self.batch_order(name, np.ones(len(images)), max_rows=self.batch_sizes[name])
            settings = (self._evaluation, order, self.seed, self.cache)
            datasets[name] = self.dataset_class(images, *settings)
        return datasets

    @property
    def image_size(self) -> ImageSize:
        """Height and width of the model's input in pixels, or the side of a square."""
        self.setup()
        return self._evaluation.size

    def artifacts(self) -> dict[str, Any]:
        """Return the class names and the settings of the evaluation transform."""
        names: dict[str, Any] = {"class_names": self.class_names}  # reads the data
        names |= {"multi_label": True} if self.label_separator else {}
        return names | self._evaluation.artifacts()

    def check_classes(self, train: ImageStore) -> None:
        """Raise InputError unless there are two classes or more, and all have training images."""
        if train.labels.is_floating_point():  # several labels, or a number
            return
        counts = torch.bincount(train.labels, minlength=len(train.class_names))
        if len(counts) < 2:
            message = f"there must be at least 2 classes, got only {train.class_names[0]}"
            raise InputError(message, file=train.origin)
        if not counts.all():
            name = train.class_names[int(counts.argmin())]
            raise InputError(f"the class {name} has no training images", file=train.origin)
