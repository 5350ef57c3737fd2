"""CaptionData: DataModule for images with captions, and its dataset.

Shapes: N images, B images of a batch, T tokens.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from fourfold.core.validation import check_choice
from fourfold.data.loading.batches import CaptionBatch
from fourfold.data.loading.counter_rng import integers
from fourfold.data.loading.datamodule import BatchedDataset, batch_sizes
from fourfold.data.loading.ragged import RaggedArray
from fourfold.data.readers.truncation import limit_lengths
from fourfold.data.text.base import TextDataModule
from fourfold.data.vision.caption_sources import CaptionedImages, digit_captions, read_captions
from fourfold.data.vision.dataset import ImageDataset, check_channels, make_transforms
from fourfold.data.vision.transforms import TransformConfig
from fourfold.errors import InputError
from fourfold.tokenization.tokenizer import Tokenizer
from fourfold.tokenization.training import TokenizerConfig

MIN_LENGTH = 3  # BOS, one token and EOS
_CAPTION_STREAM = 5  # of random numbers; image transforms use stream 0


class CaptionDataset(BatchedDataset):
    """Dataset of the images of one split, each with one of its captions.

    Args:
        images: Images, with the order of the batches.
        ids: Captions from BOS to EOS, in the order of the images.
        texts: The captions as texts, in the same order, for evaluation.
        counts: (N,) number of captions of each image.
        pad_id: Id of the padding token.
        seed: Seed of the choice of a caption in each epoch; None chooses the first caption.
    """

    def __init__(
        self,
        images: ImageDataset,
        ids: RaggedArray,
        texts: Sequence[str],
        counts: np.ndarray,
        pad_id: int,
        seed: int | None,
    ) -> None:
        self.images = images
        self.order = images.order
        self.ids = ids
        self.texts = texts
        self.counts = counts
        self.pad_id = pad_id
        self.seed = seed
        self.first = np.cumsum(counts) - counts  # row of each image's first caption

    @property
    def has_static_shape(self) -> bool:
        """Always False, since a batch is as long as its longest caption."""
        return False

    @property
    def max_length(self) -> int:
        """Number of tokens of the longest caption."""
        return int(self.ids.lengths.max())

    def prepare(self) -> None:
        """Fill the cache of the images."""
        self.images.prepare()

    def batch(self, rows: np.ndarray, epoch: int, position: int) -> CaptionBatch:
        """Return the images of `rows`, each with its caption of this epoch."""
        captions = self.first[rows]
        if self.seed is not None:
            counts = self.counts[rows]
            captions = captions + integers(self.seed, epoch, rows, counts, _CAPTION_STREAM)
        ids, mask = self.ids.padded(captions, self.pad_id)  # (B, T)
        batch = self.images.batch(rows, epoch, position)
        return CaptionBatch(batch.images, ids, mask, batch.rows, epoch, position)


class CaptionData(TextDataModule):
    """DataModule for images with one or several captions each.

    Training samples one caption for each image and epoch. The loss of an evaluation uses the first
    caption of each image, so that the loss is reproducible. Generated captions are compared with
    all captions of an image. Without a `val` split there is no validation; without a `test` split,
    the `val` split is tested.

    Args:
        source: "digits" (built in: scikit-learn's digits, described in words), or a folder or zip
            archive; a relative path may also lie under $FOURFOLD_DATA.
        captions: JSON-lines file in the source, with a line for each image.
        images: Folder of the images in the source; "" for the folder of the JSON-lines file.
        image_column: Key of the image's file name.
        split_column: Key of train, val or test.
        caption_column: Key of the caption, or of a list of captions.
        batch_size: Images per training batch; each image is contrasted with all of its captions.
        eval_batch_size: Images per validation or test batch; None means `batch_size`.
        tokenizer: Tokenizer, by default a BPE trained on the training captions. BOS and EOS must
            be different tokens.
        max_len: Maximum length of a caption in tokens, BOS and EOS included.
        too_long: "error" or "truncate".
        transform: Image transforms; flipped images may contradict their captions.
        n_channels: 1 or 3, to which images are converted; None means 1 for digits, otherwise 3.
        cache: "memory" decodes all images once, "none" decodes an image when it is used, and "auto"
            decodes all images once if their pixels take at most 2 GiB.
        seed: Seed of order, captions and augmentation, together with the epoch.
        num_workers: Worker processes that prepare batches.

    Raises:
        InputError: An option is out of range; in `setup`, files cannot be read, or captions are
            too long.
    """

    batch_class = CaptionBatch
    # Id 2 is not </s>: transformers' CLIP gives eos_token_id 2 a special meaning.
    special: ClassVar[Sequence[str]] = ("<pad>", "<unk>", "<s>", "</s>")

    def __init__(
        self,
        source: str = "digits",
        captions: str = "captions.jsonl",
        images: str = "images",
        image_column: str = "image",
        split_column: str = "split",
        caption_column: str = "captions",
        batch_size: int = 128,
        eval_batch_size: int | None = None,
        tokenizer: TokenizerConfig = TokenizerConfig(),  # noqa: B008 (frozen)
        max_len: int = 77,
        too_long: Literal["error", "truncate"] = "error",
        transform: TransformConfig | None = None,
        n_channels: int | None = None,
        cache: Literal["auto", "memory", "none"] = "auto",
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__(tokenizer, seed, num_workers)
        self.transform = transform or TransformConfig()
        if max_len < MIN_LENGTH:
            raise InputError(
                f"must be at least {MIN_LENGTH} for BOS, a token and EOS, got {max_len}",
                option="data.max_len",
            )
        check_channels(n_channels)
        check_choice("data.too_long", too_long, ("error", "truncate"))
        for name in ("mixup", "cutmix"):
            value = getattr(self.transform, name)
            if value:
                raise InputError(
                    f"must be 0, since captions cannot be mixed, got {value}",
                    option=f"data.transform.{name}",
                )
        self.source = source
        self.captions_file = captions
        self.images_folder = images
        self.columns = (image_column, split_column, caption_column)
        self.batch_sizes = batch_sizes(batch_size, eval_batch_size)
        self.max_len = max_len
        self.too_long = too_long
        self.cache = cache
        self._n_channels = n_channels

    def read(self) -> dict[str, CaptionedImages]:
        """Read the captions of all splits, and the size of the training images."""
        if self.source == "digits":
            splits = digit_captions()
        else:
            splits = read_captions(
                self.source, self.captions_file, self.images_folder, self.columns
            )
        if "val" in splits:
            splits.setdefault("test", splits["val"])
        self.split_sources = {name: split.images for name, split in splits.items()}
        self._augmentation, self._evaluation = make_transforms(
            self.transform, splits["train"].images, self._n_channels, self.seed
        )
        return splits

    def training_texts(self, raw: CaptionedImages) -> Sequence[str]:
        """Return the captions of the training split."""
        return raw.texts.columns[0]

    def encode(self, name: str, raw: CaptionedImages, tokenizer: Tokenizer) -> CaptionDataset:
        """Tokenize the captions of a split."""
        if tokenizer.bos_id == tokenizer.eos_id:
            raise InputError(
                f"must have different tokens for BOS and EOS, got id {tokenizer.eos_id} for both",
                option="data.tokenizer",
            )
        texts = raw.texts.columns[0]
        encoded = [RaggedArray.from_lengths(*tokenizer.encode_corpus(texts))]
        (ids,), _ = limit_lengths(encoded, raw.texts, self.max_len - 2, self.too_long, name)
        is_train = name == "train"
        transform = self._augmentation if is_train else self._evaluation
        batch_size = self.batch_sizes["train" if is_train else "other"]
        return CaptionDataset(
            ImageDataset(raw.images, transform, batch_size, self.seed, self.cache),
            ids.wrap(tokenizer.bos_id, tokenizer.eos_id),
            texts,
            raw.counts,
            tokenizer.pad_id,
            self.seed if is_train else None,
        )

    def references(self, split: str) -> list[list[str]]:
        """Return all captions of each image of a split, not truncated."""
        dataset = self.split(split)
        assert isinstance(dataset, CaptionDataset)
        starts = dataset.first.tolist()
        ends = (dataset.first + dataset.counts).tolist()
        return [list(dataset.texts[i:j]) for i, j in zip(starts, ends, strict=True)]

    def artifacts(self) -> dict[str, Any]:
        """Return the tokenizer, the maximum length and the settings of the evaluation transform."""
        text_artifacts = super().artifacts()  # reads the data
        return {**text_artifacts, "max_len": self.max_len, **self._evaluation.artifacts()}
