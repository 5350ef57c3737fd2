"""Translation tasks with encoder-decoders, T5, composite encoder-decoders and recurrent models.

Shapes: B examples, T target tokens.
"""

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
from fourfold.models.encoder_decoder.model import Seq2Seq
from fourfold.models.encoder_decoder.seq2seq_task import Seq2SeqTask
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig


@dataclass(eq=False, repr=False)
class Translation(Seq2SeqTask[PairBatch]):
    """Translation with an encoder-decoder (Vaswani et al. 2017).

    Args:
        optimizer: Options of the optimizer; the default is the paper's Adam (section 5.3).
        schedule: Options of the schedule; the default is the paper's (eq. 3).
        source_lengths: Ranges of source lengths in words, such as [[1, 15], [16, 60]]. A test also
            reports the BLEU of the pairs of each range, such as bleu_1_15.
    """

    model_class: ClassVar[type[Seq2Seq]] = EncoderDecoder
    batch_class = PairBatch

    config: EncoderDecoderConfig = EncoderDecoderConfig()
    optimizer: OptimizerConfig = OptimizerConfig(
        name="adam", lr=1.0, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0
    )
    schedule: ScheduleConfig = ScheduleConfig(name="noam", warmup_steps=4000)
    label_smoothing: float = 0.1
    source_lengths: list[list[int]] | None = None

    def length_groups(self, split: str) -> dict[str, set[int]]:
        """Return the rows of each range in `source_lengths`, by a name such as "1_15"."""
        lengths = [len(text.split()) for text in self.datamodule.sources(split)]
        return {
            f"{first}_{last}": {row for row, n in enumerate(lengths) if first <= n <= last}
            for first, last in self.source_lengths or ()
        }

    def n_units(self, batch: PairBatch) -> int:
        """Return the number of source and target tokens, padding included."""
        return batch.src.numel() + batch.tgt.numel()


@dataclass(eq=False, repr=False)
class TextToText(Translation):
    """Text-to-text tasks with T5 (Raffel et al. 2019).

    The decoder's input begins with the begin token of the tokenizer. If the tokenizer has no begin
    token, the input begins with the padding token, as the released weights expect. The paper does
    not smooth labels. Its beam search has 4 beams and the length-penalty exponent 0.6 (section
    3.7).

    Args:
        optimizer: Options of the optimizer; the default is Adam, since the paper's AdaFactor is not
            implemented.
        schedule: Options of the schedule; the default is 0.1 / sqrt(step) after 10,000 steps, a
            tenth of the paper's rate for AdaFactor (section 3.1.2). The rate of the first 10,000
            steps, which is constant in the paper, grows linearly here.
    """

    model_class = T5

    config: T5Config = T5Config()
    optimizer: OptimizerConfig = OptimizerConfig(name="adam", weight_decay=0.0)
    schedule: ScheduleConfig = ScheduleConfig(name="inverse_sqrt", warmup_steps=10_000)
    label_smoothing: float = 0.0


@dataclass(eq=False, repr=False)
class CompositeTranslation(Translation):
    """Translation with separately pre-trained encoder and decoder (Rothe et al. 2020).

    The option `init_from: {encoder: PATH, decoder: PATH}` names the two pre-trained models.

    Args:
        optimizer: Options of the optimizer; the default is Adam. Its `lr` of 0.05 is a factor of
            the learning rates of the schedule.
        schedule: Options of the schedule; the default is that of Vaswani et al. 2017 with a longer
            warm-up. The largest learning rate is 9e-6 at width 768, which preserves pre-trained
            weights.
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
