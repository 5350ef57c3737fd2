"""Task of image captioning with an image encoder and a text decoder."""

from fourfold.checkpoints.init_from import InitFrom
from fourfold.data.loading.batches import CaptionBatch, PairBatch
from fourfold.models import CompositeEncoderDecoder, ImageToTextConfig
from fourfold.models.finetuning.config import TuningConfig
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.tasks.seq2seq import Seq2SeqTask


class Captioning(Seq2SeqTask[CaptionBatch]):
    """Image captioning, evaluated by beam search with sacreBLEU and chrF.

    The perplexity is that of the caption in the batch, which in evaluation is the first one of the
    image. A generated caption is compared with all captions of the image.

    Args:
        config: Config of the model.
        optimizer: Options of the optimizer; the default is AdamW with a rate that preserves
            pre-trained weights.
        schedule: Options of the schedule; the default is warm-up and cosine decay.
        label_smoothing: See `Seq2SeqTask`, as for all further arguments.
    """

    model_class = CompositeEncoderDecoder
    batch_class = CaptionBatch
    config_class = ImageToTextConfig
    unit = "images"

    def __init__(
        self,
        config: ImageToTextConfig = ImageToTextConfig(),  # noqa: B008  (frozen)
        optimizer: OptimizerConfig = OptimizerConfig(lr=5e-5),  # noqa: B008
        schedule: ScheduleConfig = ScheduleConfig(name="cosine", warmup_steps=500),  # noqa: B008
        label_smoothing: float = 0.0,
        label_smoothing_type: str = "uniform",
        num_beams: int = 4,
        length_penalty: float = 0.6,
        length_penalty_type: str = "gnmt",
        val_num_beams: int = 1,
        init_from: InitFrom = None,
        tuning: TuningConfig = TuningConfig(),  # noqa: B008
    ) -> None:
        super().__init__(
            config,
            optimizer,
            schedule,
            label_smoothing,
            label_smoothing_type,
            num_beams,
            length_penalty,
            length_penalty_type,
            val_num_beams,
            init_from,
            tuning,
        )

    def as_pairs(self, batch: CaptionBatch) -> PairBatch:
        """Return images as sources, which have no mask, and captions as targets."""
        return PairBatch(batch.images, batch.ids, None, batch.mask, batch.rows)  # type: ignore[arg-type]

    def n_units(self, batch: CaptionBatch) -> int:
        return len(batch.images)
