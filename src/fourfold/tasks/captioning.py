"""Saying what is on an image: an encoder of images and a decoder of texts, joined."""

from typing import Any

from fourfold.data.batch import CaptionBatch, PairBatch
from fourfold.models import CaptionerConfig, Joined
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.tasks.writing import Writing


class Captioning(Writing):
    """Learns to write an image's text; is tested by beam search with sacreBLEU and chrF.

    Perplexity is that of the text which a batch has for an image, in evaluation its first. What is
    written is compared with all texts of the image.

    Args:
        config: The model.
        optimizer: Default: AdamW with a rate at which pre-trained weights survive.
        schedule: Default: warm-up and cosine.
        options: As `Writing`: smoothing of the labels, beams, `init_from` and `tuning`.
    """

    model_class = Joined
    batch_class = CaptionBatch
    config_class = CaptionerConfig
    unit = "images"

    def __init__(
        self,
        config: CaptionerConfig = CaptionerConfig(),  # noqa: B008  (frozen)
        optimizer: OptimizerConfig = OptimizerConfig(lr=5e-5),  # noqa: B008
        schedule: ScheduleConfig = ScheduleConfig(name="cosine", warmup_steps=500),  # noqa: B008
        **options: Any,
    ) -> None:
        super().__init__(config, optimizer, schedule, **options)

    def pairs(self, batch: CaptionBatch) -> PairBatch:
        """Images as sources, which have no mask, and texts as targets."""
        # A source is a Tensor of any kind; only its mask may be missing.
        return PairBatch(batch.images, batch.ids, None, batch.mask, batch.index)  # type: ignore[arg-type]

    def size(self, batch: CaptionBatch) -> int:
        """Images in the batch."""
        return len(batch.images)
