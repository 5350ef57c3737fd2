"""Image captioning tasks: image encoder and text decoder, or recurrent decoder with attention.

Shapes: B images, T target tokens, S locations of an image.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch

from fourfold.data.loading.batches import CaptionBatch, PairBatch
from fourfold.loggers.media import AttentionMaps, Media
from fourfold.loggers.samples import MAX_TOKENS
from fourfold.metrics import CaptionScores
from fourfold.models import CompositeEncoderDecoder, ImageToTextConfig
from fourfold.models.encoder_decoder.seq2seq_task import Seq2SeqTask
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig


@dataclass(eq=False, repr=False)
class Captioning(Seq2SeqTask[CaptionBatch]):
    """Image captioning, evaluated by BLEU-1 to BLEU-4 of captions from beam search.

    The metrics bleu1 to bleu4 are the corpus BLEU of the COCO evaluation. The metrics bleu and chrf
    are the metrics of translation, BLEU and chrF of sacreBLEU. The loss and the perplexity use one
    caption of each image: a random caption in training, and the first caption in evaluation. A
    generated caption is compared with all captions of the image.

    The encoder is a ViT. With the option `data.features`, the inputs are feature maps of a frozen
    convolutional network instead of images, whose locations are the patches: `image_size` is the
    side of the map, `patch_size` is 1, and `n_channels` is the number of channels of the features.

    Args:
        optimizer: Options of the optimizer; the default is AdamW with a learning rate low enough
            for pre-trained weights.
        schedule: Options of the schedule; the default is warm-up and cosine decay.
    """

    model_class = CompositeEncoderDecoder
    batch_class = CaptionBatch
    unit = "images"

    config: ImageToTextConfig = ImageToTextConfig()
    optimizer: OptimizerConfig = OptimizerConfig(lr=5e-5)
    schedule: ScheduleConfig = ScheduleConfig(name="cosine", warmup_steps=500)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.scores = CaptionScores()

    @property
    def longest_caption(self) -> int:
        """Number of tokens of the longest caption of the data, but at most `max_len`."""
        longest: int = self.artifacts.get("max_len", 51) - 1
        return min(longest, self.config.max_len or longest)

    def as_pairs(self, batch: CaptionBatch) -> PairBatch:
        """Convert a batch to a `PairBatch` whose sources are the images, without a source mask."""
        return PairBatch(batch.images, batch.ids, None, batch.mask, batch.rows)  # type: ignore[arg-type]

    def sample_outputs(self, batch: CaptionBatch, split: str) -> dict[str, Media]:
        """Build "samples", a table of captions, and "attention", the maps of one caption."""
        media = super().sample_outputs(batch, split)
        attention: Any = media.pop("attention")
        if attention.maps:
            dataset = self.datamodule.split(split)
            pixels = dataset.images.pixels(int(batch.rows[0]), dataset.transform.n_channels)
            image = dataset.transform([pixels], 0, batch.rows[:1].cpu().numpy())[0]
            media["attention"] = attention._replace(image=image)
        return media

    def _cross_attention(self, batch: PairBatch, generated: list[str]) -> AttentionMaps:
        """Compute the maps of each generated word for the first image, in the last layer.

        The map of a word is the mean over its tokens. A caption is truncated to MAX_TOKENS words.
        """
        words = generated[0].split()[:MAX_TOKENS]
        (pieces,) = self.tokenizer.encode_words([words]) if words else ([],)
        pieces = pieces or [[self.tokenizer.eos_id]]  # an empty caption
        ids = [self.start_id, *(token for word in pieces for token in word)]
        maps = self._attention_of(batch.src[0], ids[:-1][: self.config.max_len])
        if not maps:
            return AttentionMaps([], [], [], [])
        side = math.isqrt(maps[-1].shape[1])  # stored features are those of square images
        grid: Any = getattr(self.model.src_embed, "grid", (side, side))
        rows = maps[-1][:, -(grid[0] * grid[1]) :]  # (tokens, S), without the class token
        owners = torch.tensor([i for i, word in enumerate(pieces) for _ in word][: len(rows)])
        by_word = [rows[owners == i].mean(0).view(grid) for i in owners.unique().tolist()]
        title = f"attention to the image by generated word: {generated[0]}"
        return AttentionMaps(by_word, words[: len(by_word)] or ["(end)"], [], [], title=title)
