"""DataModule for semantic segmentation, which changes pictures and masks together.

Shapes: C channels, H height, W width, K classes.
"""

from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import Path as ZipPath

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fourfold.core.validation import check_range
from fourfold.data.loading.batches import SegmentationBatch
from fourfold.data.loading.counter_rng import bits
from fourfold.data.vision.augment import Augmentation, apply_seeded
from fourfold.data.vision.eval_transforms import TransformConfig
from fourfold.data.vision.image_classification import ImageData, ImageDataset
from fourfold.data.vision.image_stores import FileStore, ImageStore, UnreadableImage, ZipStore
from fourfold.data.vision.sources import SPLITS, digits
from fourfold.errors import InputError
from fourfold.losses import IGNORE_INDEX
from fourfold.text_files import resolve

VOID = 255  # number of pixels without a class in the tensors of this module


class PairStore(ImageStore):
    """Store of pictures, each with a mask of the numbers of the K classes.

    Args:
        pictures: Store of the pictures.
        masks: Store of images of one channel in the same order.
        ignore_index: Number of the pixels without a class in `masks`.
    """

    def __init__(
        self, pictures: ImageStore, masks: ImageStore, names: list[str], ignore_index: int
    ) -> None:
        super().__init__(pictures, np.zeros(len(pictures)), names, pictures.origin)
        self.masks, self.ignore_index = masks, ignore_index
        self.n_channels = pictures.n_channels

    def location(self, row: int) -> str:
        return self.images.location(self.rows[row])

    def encoded(self, row: int) -> Any:
        return self.images.encoded(self.rows[row])

    def pixels(self, row: int, n_channels: int) -> Tensor:
        """Decode a picture and its mask, (C + 1, H, W) uint8, with `VOID` for the void class.

        Raises:
            UnreadableImage: A file cannot be decoded, the mask has another size than the picture or
                several channels, or the number of a pixel is not that of a class.
        """
        image = self.images.pixels(self.rows[row], n_channels)
        mask, place = self.masks.pixels(self.rows[row], 0), self.masks.location(self.rows[row])
        if mask.shape != (1, *image.shape[1:]) or mask.dtype != torch.uint8:
            message = f"must be uint8 of shape {(1, *image.shape[1:])}, as the picture"
            raise UnreadableImage(f"{message}, got {mask.dtype} {tuple(mask.shape)}", file=place)
        void = mask == self.ignore_index
        if (invalid := (mask >= len(self.class_names)) & ~void).any():
            allowed = f"0 to {len(self.class_names) - 1} or data.ignore_index, {self.ignore_index}"
            raise UnreadableImage(f"must be {allowed}, got {int(mask[invalid][0])}", file=place)
        return torch.cat([image, mask.masked_fill(void, VOID)])


def read_pairs(path: Path) -> list[ImageStore]:
    """Open the pictures in `images` and the masks in `masks`, whose names differ in the suffix.

    `path` is a folder or a zip archive.
    """
    from torchvision.datasets.folder import IMG_EXTENSIONS

    root, store = (ZipPath(path), ZipStore) if path.is_file() else (path, FileStore)
    found: dict[str, dict[str, str]] = {}
    for folder in ("images", "masks"):
        place: Any = root / folder
        names = [file.name for file in place.iterdir()] if place.is_dir() else []
        names = [n for n in names if n[0] != "." and n.lower().endswith(IMG_EXTENSIONS)]
        found[folder] = {Path(n).stem: f"{folder}/{n}" for n in names}
        if len(found[folder]) < len(names):
            raise InputError(f"two files in {folder} have the same name without suffix", file=path)
    if unpaired := sorted(found["images"].keys() ^ found["masks"].keys()):
        raise InputError(f"{unpaired[0]} must be in the folders images and masks", file=path)
    return [
        store([files[stem] for stem in sorted(files)], np.zeros(len(files)), [""], str(path))
        for files in found.values()
    ]


@dataclass(eq=False)
class SegmentationDataset(ImageDataset):
    """Dataset of the pictures and masks of one split, a `PairStore`.

    Masks are resized without interpolation, and pixels outside of the picture have no class. In
    evaluation, masks keep their size.
    """

    def __post_init__(self) -> None:
        from torchvision.transforms import InterpolationMode, v2
        from torchvision.tv_tensors import Image, Mask

        super().__post_init__()
        if isinstance(self.transform, Augmentation):
            config, size = self.transform.config, self.transform.height_width
            steps = [self.transform.per_image] if self.transform.per_image else []
            if config.train_crop != "random_resized_crop":  # which `per_image` contains
                steps.append(v2.Resize(size, InterpolationMode(config.interpolation)))
            if config.train_crop == "pad_crop":
                fill = {Image: (255 * self.transform.normalize.mean).tolist(), Mask: VOID}
                steps.append(v2.RandomCrop(size, max(1, min(size) // 8), fill=fill))
            self.both = v2.Compose([*steps, v2.RandomHorizontalFlip(0.5 * config.flip)])

    def change(self, pair: Tensor) -> Tensor:
        """Transform a picture with its mask, (C + 1, *) uint8, with the global generator."""
        from torchvision.tv_tensors import Image, Mask

        return torch.cat(
            [x.as_subclass(Tensor) for x in self.both(Image(pair[:-1]), Mask(pair[-1:]))]
        )

    def batch(self, rows: np.ndarray, epoch: int, position: int) -> SegmentationBatch:
        return SegmentationBatch(*super().batch(rows, epoch, position))

    def transformed(self, rows: np.ndarray, epoch: int) -> tuple[Tensor, Any]:
        """Return transformed pictures (B, C, H, W) and their masks, changed by the same numbers."""
        stored = (rows % len(self.images)).tolist()
        pairs: Any = [
            self._pixels(row) if self.decoded is None else self.decoded[row] for row in stored
        ]
        if isinstance(self.transform, Augmentation):
            pairs = apply_seeded(self.change, pairs, bits(self.seed, epoch, rows, 1)[:, 0])
            images = self.transform.normalize(pairs[:, :-1])
        else:
            images = self.transform([pair[:-1] for pair in pairs])
        masks = (pair[-1].long() for pair in pairs)
        return images, [mask.masked_fill(mask == VOID, IGNORE_INDEX) for mask in masks]


@dataclass(eq=False, repr=False)
class SegmentationData(ImageData):
    """DataModule for pictures with a class for each pixel.

    Splits are made as in `ImageData`. In evaluation, pictures are squashed to the input of the
    model, and masks keep their size.

    Args:
        source: "digits" (built-in images, whose dark pixels are background), or the path of a
            folder with folders or zip archives `train`, `val` and `test`, each with the folders
            `images` and `masks`. A mask has one channel, whose numbers are those of the classes,
            and the name of its picture. A relative path may also lie under $FOURFOLD_DATA.
        classes: Names of the K classes, whose numbers are 0 to K - 1; digits have their own.
        ignore_index: Number of the pixels without a class (void), which neither loss nor metrics
            count.
        transform: Transforms, in training of picture and mask together: `size`, `train_crop`,
            `scale_min`, `flip` and `color_jitter`.

    Example:
        >>> data = SegmentationData(batch_size=4)
        >>> batch = next(iter(data.train_dataloader()))
        >>> batch.images.shape, len(batch.masks), batch.masks[0].shape
        (torch.Size([4, 1, 8, 8]), 4, torch.Size([8, 8]))
    """

    batch_class = SegmentationBatch
    dataset_class = SegmentationDataset

    _: KW_ONLY
    ignore_index: int = VOID

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("data.ignore_index", self.ignore_index, minimum=0, maximum=255)
        config = self.transform or TransformConfig()
        if config.aa or config.reprob or config.mixup or config.cutmix:
            message = "must have no aa, reprob, mixup and cutmix with masks"
            raise InputError(message, option="data.transform")
        self.transform = replace(config, crop_mode="squash", crop_pct=1.0)

    def read(self) -> dict[str, ImageStore]:
        pairs: dict[str, Any] = {}
        if self.source == "digits":
            names = ["background", *map(str, range(10))]
            for split, images in digits().items():
                pixels = [images.pixels(row, 1)[0] for row in range(len(images))]
                classes = (torch.stack(pixels) > 64) * (images.labels + 1)[:, None, None]
                masks = list(map(Image.fromarray, classes.byte().numpy()))
                pairs[split] = images, ImageStore(masks, images.labels, None, self.source)
        else:
            root, names = resolve(self.source), self.classes or []
            files = [(root / n, s) for name, s in SPLITS.items() for n in (name, f"{name}.zip")]
            pairs = {split: read_pairs(path) for path, split in files if path.exists()}
            if "train" not in pairs or not 0 < len(names) <= VOID:
                message = "must have a folder or archive train, and data.classes 1 to 255 names"
                raise InputError(message, file=root)
        return {s: PairStore(x[0], x[1], names, self.ignore_index) for s, x in pairs.items()}
