"""Tasks of translation: encoder-decoder, T5 (text to text), composite of pre-trained models."""

from dataclasses import dataclass
from typing import ClassVar

from fourfold.data.loading.batches import PairBatch
from fourfold.models import (
    T5,
    CompositeEncoderDecoder,
    EncoderDecoder,
    EncoderDecoderConfig,
    T5Config,
    TextToTextConfig,
)
from fourfold.models.encoder_decoder import Seq2Seq
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.tasks.seq2seq import Seq2SeqTask


@dataclass(eq=False, repr=False)
class Translation(Seq2SeqTask[PairBatch]):
    """Translation with an encoder-decoder (Vaswani et al. 2017).

    Args:
        config: Config of the model.
        optimizer: Options of the optimizer; the default is the paper's Adam (section 5.3).
        schedule: Options of the schedule; the default is the paper's (eq. 3).
        label_smoothing: See `Seq2SeqTask`, as for all further arguments.
    """

    model_class: ClassVar[type[Seq2Seq]] = EncoderDecoder
    batch_class = PairBatch

    config: EncoderDecoderConfig = EncoderDecoderConfig()
    optimizer: OptimizerConfig = OptimizerConfig(
        name="adam", lr=1.0, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0
    )
    schedule: ScheduleConfig = ScheduleConfig(name="noam", warmup_steps=4000)
    label_smoothing: float = 0.1

    def n_units(self, batch: PairBatch) -> int:
        """Return the number of source and target tokens, padding included."""
        return batch.src.numel() + batch.tgt.numel()


@dataclass(eq=False, repr=False)
class TextToText(Translation):
    """Text-to-text tasks with T5 (Raffel et al. 2019).

    The decoder's input begins with the begin token of the tokenizer. If the tokenizer has none, the
    input begins with the padding token, as the released weights expect.

    Args:
        config: Config of the model.
        optimizer: Options of the optimizer; the default is Adam, since the paper's AdaFactor is not
            implemented.
        schedule: Options of the schedule; the default is 0.1 / sqrt(step) after 10,000 steps, a
            tenth of the paper's rate for AdaFactor (section 3.1.2). The rate of the first 10,000
            steps, which is constant in the paper, grows linearly here.
        label_smoothing: See `Seq2SeqTask`, as for all further arguments. The paper does not smooth
            labels. Its beam search has 4 beams and the length-penalty exponent 0.6 (section 3.7).
    """

    model_class = T5

    config: T5Config = T5Config()
    optimizer: OptimizerConfig = OptimizerConfig(name="adam", weight_decay=0.0)
    schedule: ScheduleConfig = ScheduleConfig(name="inverse_sqrt", warmup_steps=10_000)
    label_smoothing: float = 0.0


@dataclass(eq=False, repr=False)
class CompositeTranslation(Translation):
    """Translation with separately pre-trained encoder and decoder (Rothe et al. 2020).

    `init_from: {encoder: PATH, decoder: PATH}` names the two pre-trained models.

    Args:
        config: Config of the model.
        optimizer: Options of the optimizer; the default is Adam. Its `lr` of 0.05 is a factor of
            the learning rates of the schedule.
        schedule: Options of the schedule; the default is that of Vaswani et al. 2017 with a longer
            warm-up. The largest learning rate is 9e-6 at width 768, which preserves pre-trained
            weights.
        label_smoothing: See `Seq2SeqTask`, as for all further arguments.
    """

    model_class = CompositeEncoderDecoder

    config: TextToTextConfig = TextToTextConfig()  # type: ignore[assignment]
    optimizer: OptimizerConfig = OptimizerConfig(name="adam", lr=0.05, weight_decay=0.0)
    schedule: ScheduleConfig = ScheduleConfig(name="noam", warmup_steps=40_000)
    label_smoothing: float = 0.0

    def _complete_config(self) -> None:
        super()._complete_config()
        if self.config.encoder.vocab_size is not None:  # one tokenizer serves both sides
            self._size("vocab_size", self.config.encoder, "model.config.encoder")
