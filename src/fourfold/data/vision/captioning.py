"""DataModule for captioned images, from files or the built-in digit images.

Shapes: N images, B images of a batch, T tokens.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from itertools import islice
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fourfold.core.validation import check_range
from fourfold.data.loading.batches import CaptionBatch
from fourfold.data.loading.counter_rng import integers
from fourfold.data.loading.ragged import RaggedArray
from fourfold.data.readers.text_table import TextTable
from fourfold.data.readers.truncation import limit_lengths
from fourfold.data.text.base import TextDataModule, text_data
from fourfold.data.vision.augment import Augmentation
from fourfold.data.vision.caption_files import CaptionedImages, read_captions
from fourfold.data.vision.eval_transforms import TransformConfig
from fourfold.data.vision.features import SIDE, FeatureConfig, image_features, load_network
from fourfold.data.vision.image_classification import ImageDataset, make_transforms
from fourfold.data.vision.image_stores import ImageStore
from fourfold.data.vision.sources import digits
from fourfold.errors import InputError
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig

NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
STROKES = ("thin", "plain", "bold")
SLANTS = ("leaning right", "upright", "leaning left")


def digit_captions() -> dict[str, CaptionedImages]:
    """Return the splits of scikit-learn's 1797 digit images, with three captions for each image.

    The captions describe the digit, its stroke (thin, plain or bold) and its slant (leaning right,
    upright or leaning left). Stroke and slant are measured from the pixels. The thresholds are
    chosen so that each stroke has a third of the training images, and each slant too.
    """
    splits = digits()
    terciles = np.quantile(_ink_and_slant(splits["train"]), [1 / 3, 2 / 3], axis=0)  # (2, 2)
    captioned = {}
    for name, images in splits.items():
        measured = zip(terciles.T, _ink_and_slant(images).T, strict=True)
        ink, slant = (np.searchsorted(borders, values) for borders, values in measured)
        texts = []
        for label, i, j in zip(images.labels.tolist(), ink, slant, strict=True):
            number, stroke, direction = NUMBERS[label], STROKES[i], SLANTS[j]
            texts += [
                f"a {stroke} handwritten {number}, {direction}",
                f"the digit {number} in {stroke} strokes, {direction}",
                f"{direction} and {stroke}: a {number}",
            ]
        table = TextTable.from_columns([texts], f"digits, {name}, text ")
        captioned[name] = CaptionedImages(images, table, np.full(len(images), 3))
    return captioned


def _ink_and_slant(images: ImageStore) -> np.ndarray:
    """Return the mean brightness and the slant of each image, (N, 2) float64.

    The slant is the number of pixels by which the stroke moves to the right in each row downwards.
    """
    pixels = torch.stack([images.pixels(row, 1)[0] for row in range(len(images))]).double()
    total = pixels.sum((1, 2))
    coordinate = torch.arange(pixels.shape[1], dtype=torch.float64)
    y = coordinate[:, None] - ((pixels.sum(2) @ coordinate) / total)[:, None, None]  # (N, H, 1)
    x = coordinate - ((pixels.sum(1) @ coordinate) / total)[:, None, None]  # (N, 1, W)
    slant = (pixels * x * y).sum((1, 2)) / (pixels * y * y).sum((1, 2))
    return torch.stack([pixels.mean((1, 2)), slant], 1).numpy()


_CAPTION_STREAM = 5  # index of the random sequence that selects captions; transforms use 0


@dataclass(eq=False, kw_only=True)
class CaptionDataset(ImageDataset):
    """Dataset of the images of one split, in which each image comes with one of its captions.

    In each epoch, one caption of each image is sampled if the transform is an `Augmentation`.
    Otherwise the first caption is used.

    Args:
        ids: Token ids of all captions in the order of the images, each caption from BOS to EOS.
        captioned: The captions as texts, for evaluation, and the number of captions of each image.
        features: Frozen features (N, C, H, W) of the images, which replace the pixels, or None.
    """

    ids: RaggedArray
    captioned: CaptionedImages
    pad_id: int
    features: Tensor | None = None

    has_static_shape = False  # captions are padded to the longest of their batch

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = self.captioned.counts
        self.first = np.cumsum(counts) - counts  # row of each image's first caption

    @property
    def max_length(self) -> int:
        """Number of tokens of the longest caption, BOS and EOS included."""
        return int(self.ids.lengths.max())

    def prepare(self) -> None:
        if self.features is None:
            super().prepare()

    def batch(self, rows: np.ndarray, epoch: int, position: int) -> CaptionBatch:
        """Return a batch of images or features, each with the caption of this epoch."""
        captions = self.first[rows]
        if isinstance(self.transform, Augmentation):
            counts = self.captioned.counts[rows]
            captions = captions + integers(self.seed, epoch, rows, counts, _CAPTION_STREAM)
        ids, mask = self.ids.padded(captions, self.pad_id)  # (B, T)
        if self.features is None:
            images, _ = self.transformed(rows, epoch)
        else:
            images = self.features[torch.from_numpy(rows)].float()
        return CaptionBatch(images, ids, mask, torch.from_numpy(rows), epoch, position)


@text_data
class CaptionData(TextDataModule):
    """DataModule for images with one or several captions each.

    In training, one caption of each image is sampled in each epoch. In evaluation, the loss is
    computed with the first caption of each image, so that the loss is reproducible. Generated
    captions are compared with all captions of an image. Without a `val` split there is no
    validation. Without a `test` split, the `val` split is tested.

    Args:
        source: "digits" (built in: scikit-learn's digits, described in words), or the path of a
            folder or zip archive. A relative path may also lie under $FOURFOLD_DATA.
        captions: Path of the caption file in the source. A file with the suffix .jsonl or .json has
            a line for each image. Any other file has a line for each caption, in one of Flickr8k's
            formats: IMAGE#NUMBER, a tab and the caption, or CSV with the header image,caption.
        images: Folder of the images in the source; "" means the source itself.
        image_column: Key of the image's file name in a JSON line, and name of the image column in a
            CSV file.
        split_column: Key of the name of the image's split in a JSON line: train, val or test.
        caption_column: Key of the caption, or of the list of captions, in a JSON line.
        batch_size: Number of images per training batch. A contrastive loss (CLIP) compares each
            image with all captions of the batch.
        eval_batch_size: Number of images per validation or test batch; None means `batch_size`.
        tokenizer: Tokenizer to train or load, by default a BPE trained on the training captions.
            BOS and EOS must be different tokens.
        max_len: Maximum length of a caption in tokens, BOS and EOS included.
        too_long: Treatment of longer captions: "error" or "truncate".
        transform: Image transforms; None means the defaults of `TransformConfig`. `mixup` and
            `cutmix` must be 0. With `flip`, images may contradict captions that name a side.
        features: Frozen features of a pre-trained network, which replace the pixels; None for
            pixels. Images are then not augmented.
        n_channels: Number of channels, 1 or 3, to which images are converted; None means 1 for
            digits without features, otherwise 3.
        cache: Decoded images in memory, as in `ImageData`: "memory", "none" or "auto".
        split_files: Path in the source of the list of images of each split (train, val and test),
            for Flickr8k's formats. Images in no list are not used.
        val_fraction: Share of the images that is held out for validation, for Flickr8k's formats
            without `split_files`.
        test_fraction: Share of the images that is held out for the test, in the same case.
        split_seed: Seed of the choice of the images that are held out.

    Example:
        >>> data = CaptionData(batch_size=4)  # scikit-learn's digits, described in words
        >>> next(iter(data.train_dataloader())).images.shape
        torch.Size([4, 1, 8, 8])
        >>> len(data.references("test")[0])  # captions of the first test image
        3
    """

    batch_class = CaptionBatch
    # Id 2 is not </s>: transformers' CLIP gives eos_token_id 2 a special meaning.
    special: ClassVar[Sequence[str]] = ("<pad>", "<unk>", "<s>", "</s>")

    source: str = "digits"
    captions: str = "captions.jsonl"
    images: str = "images"
    image_column: str = "image"
    split_column: str = "split"
    caption_column: str = "captions"
    batch_size: int = 128
    eval_batch_size: int | None = None
    _: KW_ONLY
    tokenizer: InitVar[TokenizerConfig] = TokenizerConfig()
    max_len: int = 77
    too_long: Literal["error", "truncate"] = "error"
    transform: TransformConfig | None = None
    n_channels: Literal[1, 3] | None = None
    cache: Literal["auto", "memory", "none"] = "auto"
    train: None = field(default=None, init=False)
    val: None = field(default=None, init=False)
    test: None = field(default=None, init=False)
    split_files: dict[str, str] | None = None
    val_fraction: float = 0.1
    test_fraction: float = 0.1
    split_seed: int = 0
    features: FeatureConfig | None = None

    def __post_init__(self, tokenizer: TokenizerConfig) -> None:
        super().__post_init__(tokenizer)
        check_range("data.max_len", self.max_len, minimum=3)  # BOS, one token and EOS
        self._transform = self.transform or TransformConfig()
        if self.features is not None:
            self.features.check_transform(self._transform)
            if self.n_channels == 1:
                raise InputError("must be 3 with data.features, got 1", option="data.n_channels")
            self._transform, self.n_channels = replace(self._transform, size=SIDE), 3
        if self._transform.mixup or self._transform.cutmix:
            raise InputError("must have mixup 0 and cutmix 0 for captions", option="data.transform")

    def read(self) -> dict[str, CaptionedImages]:
        """Return the captioned images of each split, and set the image transforms."""
        splits = digit_captions() if self.source == "digits" else read_captions(self)
        if "val" in splits:
            splits.setdefault("test", splits["val"])
        self.split_sources = {name: split.images for name, split in splits.items()}
        self._augmentation, self._evaluation = make_transforms(
            self._transform, splits["train"].images, self.n_channels, self.seed
        )
        self._computed: dict[str, Tensor | None] = dict.fromkeys(splits)
        if self.features is not None:
            stores = [split.images for split in splits.values()]
            computed = image_features(stores, self._evaluation, self.features)
            self._computed |= zip(splits, computed, strict=True)
        return splits

    def prepare_data(self) -> None:
        """Compute frozen features and write their cache file, if the data have features.

        Lightning calls this method on one rank of each node. The other ranks then read the file.
        """
        if self.features is not None:
            self.setup()

    def training_texts(self, raw: CaptionedImages) -> Sequence[str]:
        return raw.texts.columns[0]

    def encode(self, name: str, raw: CaptionedImages, tokenizer: Tokenizer) -> CaptionDataset:
        """Tokenize the captions of a split, and return the dataset of the split.

        Raises:
            InputError: The tokenizer uses the same token for BOS and EOS, or a caption is too long.
        """
        if tokenizer.bos_id == tokenizer.eos_id:
            raise InputError("must have different tokens for BOS and EOS", option="data.tokenizer")
        encoded = [RaggedArray.from_lengths(*tokenizer.encode_corpus(raw.texts.columns[0]))]
        (ids,), _ = limit_lengths(encoded, raw.texts, self.max_len - 2, self.too_long, name)
        transform = self._augmentation if name == "train" else self._evaluation
        lengths = np.ones(len(raw.images))
        order = self.batch_order(name, lengths, max_rows=self.batch_sizes[name])
        options = (transform, order, self.seed, self.cache)
        ids = ids.wrap(tokenizer.bos_id, tokenizer.eos_id)
        texts: Any = {"ids": ids, "captioned": raw, "pad_id": tokenizer.pad_id}
        return CaptionDataset(raw.images, *options, **texts, features=self._computed[name])

    def references(self, split: str) -> list[list[str]]:
        """Return the list of all captions of each image of a split, as complete texts.

        The field `rows` of a batch holds indices into the outer list.
        """
        dataset = self.split(split)
        assert isinstance(dataset, CaptionDataset)
        texts = iter(dataset.captioned.texts.columns[0])
        return [list(islice(texts, count)) for count in dataset.captioned.counts]

    def artifacts(self) -> dict[str, Any]:
        """Return the tokenizer, `max_len`, the transform, and what identifies the features."""
        artifacts = super().artifacts() | {"max_len": self.max_len}  # reads the data
        if self.features is not None:
            layer, (_, weights) = self.features.layer, load_network()
            artifacts["features"] = {"layer": layer, "weights": weights}
        return artifacts | self._evaluation.artifacts()
