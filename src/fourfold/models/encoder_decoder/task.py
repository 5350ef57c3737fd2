"""Translation tasks with encoder-decoders, T5, composite encoder-decoders and recurrent models.

Shapes: B examples, T target tokens.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fourfold.core.validation import check_range
from fourfold.data.loading.batches import PairBatch
from fourfold.data.loading.counter_rng import uniform
from fourfold.errors import InputError
from fourfold.losses import token_scores
from fourfold.metrics import Perplexity
from fourfold.models import (
    T5,
    CompositeEncoderDecoder,
    EncoderDecoder,
    EncoderDecoderConfig,
    RecurrentEncoderDecoder,
    RecurrentEncoderDecoderConfig,
    T5Config,
    TextToTextConfig,
)
from fourfold.models.encoder_decoder.model import Seq2Seq
from fourfold.models.encoder_decoder.seq2seq_task import Seq2SeqTask
from fourfold.models.recurrent.hard_attention import marginal_cross_entropy, marginal_token_scores
from fourfold.models.recurrent.hard_attention_task import HardAttention
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig

_SAMPLING_STREAM = 11  # of the counter-based random numbers
_LUONG_2015 = RecurrentEncoderDecoderConfig()


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


@dataclass(eq=False, repr=False)
class RecurrentTranslation(HardAttention, Translation):
    """Translation with a recurrent encoder-decoder, such as RNNsearch or the models of Luong 2015.

    An evaluation that generates texts also reports the metrics `loss_free_running` and
    `ppl_free_running`. They are the loss and the perplexity of the true tokens for a decoder whose
    inputs are its own most likely tokens.

    The config selects the loss. A model with `mix_outputs` has the loss of the exact marginal. With
    `attn_weights: hard_sample`, the loss includes the REINFORCE term. The random positions of
    hard_sample and hard_gumbel depend only on the seed of the data, the epoch and the sentence
    pair. An evaluation uses the position with the largest weight instead of a random position.

    Args:
        optimizer: Options of the optimizer; the default is Adam. The papers use SGD with a loss
            that is summed over the tokens of a sentence, or Adadelta.
        schedule: Options of the schedule; the default is a constant learning rate.
        label_smoothing: Probability mass taken from the target. Must be 0 with `mix_outputs`.
        scheduled_sampling: Probability that an input token of the decoder is replaced in training
            by the most likely token of the model (Bengio et al. 2015). The replacement needs a
            second, sequential pass of the decoder.
        reward_weight: Factor on the REINFORCE term of `attn_weights: hard_sample`; see
            `fourfold.models.recurrent.hard_attention.reinforce_term`. The baseline of the term is a
            moving average of the loss of a token, which checkpoints store.
        entropy_weight: Factor on the entropy of the attention of `attn_weights: hard_sample`. The
            default is that of the released code of Xu et al. 2015.

    Raises:
        InputError: A value is outside its range, or the scores of the attention would get no
            gradient.
    """

    model_class = RecurrentEncoderDecoder

    config: RecurrentEncoderDecoderConfig = _LUONG_2015  # type: ignore[assignment]
    optimizer: OptimizerConfig = OptimizerConfig(name="adam", weight_decay=0.0)
    schedule: ScheduleConfig = ScheduleConfig()
    label_smoothing: float = 0.0
    scheduled_sampling: float = 0.0
    reward_weight: float = 1.0
    entropy_weight: float = 0.002

    def __post_init__(self) -> None:
        check_range("scheduled_sampling", self.scheduled_sampling, minimum=0.0, maximum=1.0)
        config = self.config
        has_attention = config.context == "attention"
        if config.mix_outputs and self.label_smoothing:
            message = f"must be 0 for mix_outputs, got {self.label_smoothing:g}"
            raise InputError(message, option="label_smoothing")
        if has_attention and config.attn_weights == "hard_argmax" and not config.mix_outputs:
            message = "must be true to train hard_argmax, whose scores have no gradient otherwise"
            raise InputError(f"{message}; got false", option="model.config.mix_outputs")
        super().__post_init__()
        self.free_running = Perplexity()
        if has_attention and config.attn_weights == "hard_sample":
            self.register_buffer("reward_baseline", torch.zeros(()))

    def n_positions(self, batch: PairBatch) -> int:
        return batch.src.shape[1]

    def _decode(
        self, batch: PairBatch, memory: Any, inputs: Tensor, targets: Tensor
    ) -> tuple[Any, ...]:
        if not self.config.mix_outputs:
            return super()._decode(batch, memory, inputs, targets)
        assert isinstance(self.model, RecurrentEncoderDecoder)
        return *self.model.decode_by_vector(inputs, memory), targets.flatten()

    def _loss(self, output: tuple[Any, ...]) -> Tensor:
        return marginal_cross_entropy(*output) if self.config.mix_outputs else super()._loss(output)

    def _token_scores(self, output: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
        return (marginal_token_scores if self.config.mix_outputs else token_scores)(*output)

    def _teacher_forced(self, batch: PairBatch) -> tuple[Any, ...]:
        memory, inputs, targets = self._encode(batch)
        if self.training and self.scheduled_sampling:
            rows = batch.rows.cpu().numpy()
            draws = uniform(self.data_seed, batch.epoch, rows, inputs.shape[1], _SAMPLING_STREAM)
            replaced = torch.from_numpy(draws < self.scheduled_sampling).to(inputs.device)
            inputs = self._with_predictions(memory, inputs, replaced)
        return self._decode(batch, memory, inputs, targets)

    @torch.no_grad()
    def _with_predictions(self, memory: Any, inputs: Tensor, replaced: Tensor) -> Tensor:
        """Replace input tokens (B, T), where `replaced` is True, by the model's most likely tokens.

        The decoder runs from left to right. A prediction is computed from the tokens before it,
        some of which may be predictions themselves.
        """
        cache, columns = self.model.new_cache(), [inputs[:, 0]]
        for t in range(1, inputs.shape[1]):
            h = self.model.decode(columns[-1][:, None], memory, cache=cache)
            predicted = self.model.logits(h[:, -1]).argmax(-1)
            columns.append(torch.where(replaced[:, t], predicted, inputs[:, t]))
        return torch.stack(columns, dim=1)

    def update_metrics(self, batch: PairBatch, split: str) -> None:
        super().update_metrics(batch, split)
        if split == "test" or self.val_num_beams:
            memory, inputs, targets = self._encode(batch)
            inputs = self._with_predictions(memory, inputs, torch.ones_like(inputs).bool())
            output = self._decode(batch, memory, inputs, targets)
            self.free_running.update(*self._token_scores(output), targets=output[-1])

    def compute_metrics(self, split: str) -> dict[str, Any]:
        metrics = super().compute_metrics(split)
        if split == "test" or self.val_num_beams:
            free = self.free_running.compute()
            metrics["loss_free_running"] = free["loss"]
            metrics["ppl_free_running"] = free.get("ppl_token", 1.0)
        return metrics
