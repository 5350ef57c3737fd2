"""Image captioning tasks: image encoder and text decoder, or recurrent decoder with attention.

Shapes: B images, T target tokens, S locations of an image.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch

from fourfold.data.loading.batches import CaptionBatch, PairBatch
from fourfold.errors import InputError
from fourfold.loggers.media import AttentionMaps, Media
from fourfold.loggers.samples import MAX_TOKENS
from fourfold.losses import IGNORE_INDEX
from fourfold.metrics import CaptionScores, Mean
from fourfold.models import (
    CompositeEncoderDecoder,
    ImageToTextConfig,
    RecurrentCaptioner,
    RecurrentCaptionerConfig,
)
from fourfold.models.encoder_decoder.seq2seq_task import Seq2SeqTask
from fourfold.models.recurrent.hard_attention_task import HardAttention
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
        attention = media.pop("attention")
        assert isinstance(attention, AttentionMaps)
        if attention.maps:
            dataset = self.datamodule.split(split)
            row = int(batch.rows[0])
            pixels = dataset.images.pixels(row, dataset.transform.n_channels)
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
        side = math.isqrt(maps[-1].shape[1])
        rows = maps[-1][:, -(side**2) :]  # (tokens, S), without the class token
        owners = torch.tensor([i for i, word in enumerate(pieces) for _ in word][: len(rows)])
        by_word = [rows[owners == i].mean(0).view(side, side) for i in owners.unique().tolist()]
        title = f"attention to the image by generated word: {generated[0]}"
        names = words[: len(by_word)] or ["(end)"]
        return AttentionMaps(by_word, names, [], [], title=title)


@dataclass(eq=False, repr=False)
class RecurrentCaptioning(HardAttention, Captioning):
    """Image captioning with a recurrent decoder (Vinyals et al. 2015; Xu et al. 2015).

    The training loss includes the doubly stochastic loss of the attention weights. The validation
    loss does not. With attention, there are two further metrics. attention_entropy is the mean
    entropy of the weights of a token, in nats. attention_change is the mean total variation between
    the weights of successive tokens, from 0 to 1, and is near 0 if the maps do not depend on the
    word. The random locations of hard attention depend only on the seed of the data, the epoch and
    the image.

    Args:
        optimizer: Options of the optimizer; the default is Adam with the learning rate of the
            released code.
        schedule: Options of the schedule; the default is a constant learning rate.
        label_smoothing: Probability mass taken from the target. Must be 0 for the attention
            hard_sample.
        doubly_stochastic: Factor lambda on `doubly_stochastic_loss`; not used without attention.
        reward_weight: Factor on the REINFORCE gradient of the attention hard_sample. 1 is unbiased,
            and 0.1 is the factor of the released code.
        entropy_weight: Factor on the entropy of the weights in the objective of hard_sample.

    Raises:
        InputError: `label_smoothing` is not 0 for the attention hard_sample.
    """

    model_class = RecurrentCaptioner  # type: ignore[assignment]

    config: RecurrentCaptionerConfig = RecurrentCaptionerConfig()  # type: ignore[assignment]
    optimizer: OptimizerConfig = OptimizerConfig(name="adam", lr=2e-4, weight_decay=0.0)
    schedule: ScheduleConfig = ScheduleConfig(name="constant")
    doubly_stochastic: float = 1.0
    reward_weight: float = 1.0
    entropy_weight: float = 0.002

    def __post_init__(self) -> None:
        if self.label_smoothing and self.config.attention == "hard_sample":
            message = f"must be 0 for hard_sample, got {self.label_smoothing}"
            raise InputError(message, option="label_smoothing")
        super().__post_init__()
        self.entropy, self.change = Mean(), Mean()
        if self.config.image == "attention" and self.config.attention == "hard_sample":
            self.register_buffer("reward_baseline", torch.zeros(()))

    def n_positions(self, batch: CaptionBatch) -> int:
        height, width = batch.images.shape[2:]
        encoder = self.config.encoder
        return height * width if encoder is None else (height // encoder.patch_size) ** 2

    def update_metrics(self, batch: CaptionBatch, split: str) -> None:
        super().update_metrics(batch, split)
        if self.attention is None:
            return
        with self.attention.recording() as records:
            output = self._teacher_forced(self.as_pairs(batch))
        counts = output[-1].view(len(batch.ids), -1) != IGNORE_INDEX
        alpha = torch.cat([alpha for alpha, _ in records], 1)  # (B, T, S)
        self.entropy.update((torch.special.entr(alpha).sum(-1) * counts).sum(), counts.sum())
        change = (alpha[:, 1:] - alpha[:, :-1]).abs().sum(-1) / 2
        self.change.update((change * counts[:, 1:]).sum(), counts[:, 1:].sum())

    def compute_metrics(self, split: str) -> dict[str, Any]:
        metrics = super().compute_metrics(split)
        if self.attention is not None:
            metrics["attention_entropy"] = self.entropy.compute()
            metrics["attention_change"] = self.change.compute()
        return metrics
