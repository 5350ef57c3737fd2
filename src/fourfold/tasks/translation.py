"""Translation with an encoder-decoder (Vaswani et al. 2017)."""

from typing import Any, ClassVar

from fourfold.core.config import TransformerConfig
from fourfold.data.batch import PairBatch
from fourfold.models import EncoderDecoder, EncoderDecoderConfig
from fourfold.models.encoder_decoder import Seq2Seq
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.tasks.writing import Writing


class Translation(Writing):
    """Learns pairs of sentences; is tested by beam search with sacreBLEU and chrF.

    Args:
        config: The model.
        optimizer: Default: the paper's Adam (section 5.3).
        schedule: Default: the paper's (eq. 3).
        options: As `Writing`: smoothing of the labels, beams, `init_from` and `tuning`.
    """

    model_class: ClassVar[type[Seq2Seq]] = EncoderDecoder
    batch_class = PairBatch
    config_class: ClassVar[type[TransformerConfig]] = EncoderDecoderConfig

    def __init__(
        self,
        config: EncoderDecoderConfig = EncoderDecoderConfig(),  # noqa: B008  (frozen)
        optimizer: OptimizerConfig = OptimizerConfig(  # noqa: B008
            name="adam", lr=1.0, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0
        ),
        schedule: ScheduleConfig = ScheduleConfig(name="noam", warmup_steps=4000),  # noqa: B008
        label_smoothing: float = 0.1,
        **options: Any,
    ) -> None:
        super().__init__(config, optimizer, schedule, label_smoothing, **options)

    def size(self, batch: PairBatch) -> int:
        """Source and target places, padding included."""
        return batch.src.numel() + batch.tgt.numel()
