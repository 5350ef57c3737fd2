"""Image captioning task with an image encoder and a text decoder."""

from dataclasses import dataclass

from fourfold.data.loading.batches import CaptionBatch, PairBatch
from fourfold.models import CompositeEncoderDecoder, ImageToTextConfig
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.tasks.seq2seq import Seq2SeqTask


@dataclass(eq=False, repr=False)
class Captioning(Seq2SeqTask[CaptionBatch]):
    """Image captioning, evaluated by sacreBLEU and chrF of captions from beam search.

    The loss and the perplexity use one caption of each image: a random caption in training, and the
    first caption in evaluation. A generated caption is compared with all captions of the image.

    Args:
        config: Config of the model.
        optimizer: Options of the optimizer; the default is AdamW with a learning rate low enough
            for pre-trained weights.
        schedule: Options of the schedule; the default is warm-up and cosine decay.
        label_smoothing: See `Seq2SeqTask`, as for all further arguments.
    """

    model_class = CompositeEncoderDecoder
    batch_class = CaptionBatch
    unit = "images"

    config: ImageToTextConfig = ImageToTextConfig()
    optimizer: OptimizerConfig = OptimizerConfig(lr=5e-5)
    schedule: ScheduleConfig = ScheduleConfig(name="cosine", warmup_steps=500)

    def as_pairs(self, batch: CaptionBatch) -> PairBatch:
        """Return a batch of pairs whose sources are the images; the source mask is None."""
        return PairBatch(batch.images, batch.ids, None, batch.mask, batch.rows)  # type: ignore[arg-type]
