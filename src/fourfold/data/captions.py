"""Images with captions: `CaptionData`.

Legend: B images, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from torch.utils.data import DataLoader

from fourfold.core.errors import InputError
from fourfold.data.augment import Augment
from fourfold.data.batch import CaptionBatch
from fourfold.data.caption_sources import Captioned, described_digits, read_captions
from fourfold.data.datamodule import BatchDataset, batch_sizes
from fourfold.data.image_split import ImageSplit
from fourfold.data.images import native_size
from fourfold.data.limits import fit_lengths
from fourfold.data.noise import integers
from fourfold.data.ragged import Ragged
from fourfold.data.sampler import Plan
from fourfold.data.tokenized import TokenizedData
from fourfold.data.tokenizer import Tokenizer
from fourfold.data.tokenizer_training import TokenizerConfig
from fourfold.data.transforms import EvalTransform, TransformConfig

_STREAM = 5  # of the random numbers that choose a caption; images have 0


class CaptionSplit(BatchDataset):
    """A split whose images come with one of their texts each.

    Args:
        images: the images, with the plan of the batches.
        ids: all texts from BOS to EOS, those of one image after those of another.
        texts: all texts as they were read, for evaluation.
        counts: (N,) texts of each image.
        pad_id: in the empty places.
        seed: decides with the epoch which text an image gets; None = its first.
    """

    def __init__(
        self,
        images: ImageSplit,
        ids: Ragged,
        texts: Sequence[str],
        counts: np.ndarray,
        pad_id: int,
        seed: int | None,
    ) -> None:
        self.images, self.plan, self.texts = images, images.plan, texts
        self.ids, self.counts, self.pad_id, self.seed = ids, counts, pad_id, seed
        self.first = np.cumsum(counts) - counts

    @property
    def has_one_shape(self) -> bool:
        return False  # as many tokens as the longest text has

    @property
    def longest(self) -> int:
        """Tokens of the longest text."""
        return int(self.ids.lengths.max())

    def batch(self, index: np.ndarray, epoch: int, position: int) -> CaptionBatch:
        """The images of rows `index`, each with the text that this epoch has for it."""
        chosen = self.first[index]
        if self.seed is not None:
            chosen = chosen + integers(self.seed, epoch, index, self.counts[index], _STREAM)
        ids, mask = self.ids.padded(chosen, self.pad_id)  # (B, T)
        pictures = self.images.batch(index, epoch, position)
        return CaptionBatch(pictures.images, ids, mask, pictures.index, epoch, position)


class CaptionData(TokenizedData):
    """Images with one text or several each.

    Training draws one text an image and epoch; evaluation reads the first text of each image, so
    that numbers are the same each time, and compares what is written with all of them. Without a
    `val` split there is no validation; without a `test` split, `val` is tested.

    Args:
        source: "digits" (embedded: scikit-learn's digits, described in words), or a folder or .zip
            archive; a relative path that is not here is looked up under $FOURFOLD_DATA.
        captions: the file of JSON lines in it, a line for each image.
        images: the folder in it where the images lie; "" for beside the file.
        image_column: of the image's file name.
        split_column: of train, val or test.
        caption_column: of the text, or a list of texts.
        batch_size: images of a training batch, among whose texts each image has to find its own.
        eval_batch_size: of a validation or test batch; None = batch_size.
        tokenizer: by default a BPE trained on the training texts. It must have different tokens for
            beginning and end.
        max_len: longest text in tokens, BOS and EOS included.
        too_long: error or truncate.
        transform: what happens to the images; mirrored ones may contradict their texts.
        n_channels: 1 or 3; None = 1 for digits, 3 otherwise.
        cache: memory = all images decoded once, none = when needed, auto = memory for up to 2 GiB.
        seed: decides order, texts and augmentation, together with the epoch.
        num_workers: processes that prepare batches.

    Raises:
        InputError: (on setup) files are missing or broken, texts too long, or images mixed.
    """

    batch_class = CaptionBatch
    # Not </s> as number 2, by which transformers' CLIP means something else (see hub/clip.py).
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
        if max_len < 3:
            raise InputError(f"max_len is {max_len}, but BOS, a token and EOS need 3.")
        if n_channels not in (None, 1, 3):
            raise InputError(f"n_channels must be 1 or 3, not {n_channels}.")
        if self.transform.mixup or self.transform.cutmix:
            raise InputError("transform.mixup and cutmix mix labels, but captions cannot be mixed.")
        self.source, self.files = source, (captions, images)
        self.columns = (image_column, split_column, caption_column)
        self.sizes = batch_sizes(batch_size, eval_batch_size)
        self.max_len, self.too_long, self.cache = max_len, too_long, cache
        self._n_channels = n_channels

    def read(self) -> dict[str, Captioned]:
        """The splits, with what has to be known of the training images."""
        if self.source == "digits":
            raw = described_digits()
        else:
            raw = read_captions(self.source, *self.files, self.columns)
        if "val" in raw:
            raw.setdefault("test", raw["val"])
        self.parts = {name: part.images for name, part in raw.items()}
        train = raw["train"].images
        self._n_channels = self._n_channels or train.n_channels
        self._size = self.transform.size or native_size(train, self._n_channels)
        return raw

    def training_texts(self, raw: Captioned) -> Sequence[str]:
        return raw.texts.columns[0]

    def encode(self, name: str, raw: Captioned, tokenizer: Tokenizer) -> CaptionSplit:
        if tokenizer.bos_id == tokenizer.eos_id:
            raise InputError(
                "The tokenizer has one token for beginning and end, but two are needed."
            )
        if self.too_long not in ("error", "truncate"):  # a text too few would shift all others
            raise InputError(f"too_long must be error or truncate, not {self.too_long!r}.")
        encoded = [tokenizer.encode_corpus(raw.texts.columns[0])]
        (ids,), _ = fit_lengths(encoded, raw.texts, self.max_len - 2, self.too_long, name)
        training, channels = name == "train", self._n_channels
        assert channels is not None
        rows = self.sizes["train" if training else "other"]
        plan = Plan(np.ones(len(raw.images)), max_rows=rows, seed=self.seed, shuffle=training)
        change: Augment | EvalTransform = EvalTransform(self.transform, self._size, channels)
        if training:
            change = Augment(self.transform, self._size, channels, self.seed)
        return CaptionSplit(
            ImageSplit(raw.images, plan, channels, change),
            ids.wrap(tokenizer.bos_id, tokenizer.eos_id),
            raw.texts.columns[0],
            raw.counts,
            tokenizer.pad_id,
            self.seed if training else None,
        )

    def _loader(self, name: str, start: tuple[int, int] = (0, 0)) -> DataLoader[Any]:
        split = self.split(name)
        assert isinstance(split, CaptionSplit)
        split.images.keep(self.cache)
        return super()._loader(name, start)

    def references(self, split: str) -> list[list[str]]:
        """All texts of each image, uncut; `batch.index` counts in them."""
        found = self.split(split)
        assert isinstance(found, CaptionSplit)
        ends = (found.first + found.counts).tolist()
        starts = found.first.tolist()
        return [list(found.texts[i:j]) for i, j in zip(starts, ends, strict=True)]

    def artifacts(self) -> dict[str, Any]:
        """The tokenizer, the longest text, and what `eval_transform` needs."""
        more = super().artifacts()  # reads the data first
        assert self._n_channels is not None
        images = EvalTransform(self.transform, self._size, self._n_channels).described()
        return {**more, "max_len": self.max_len, **images}
