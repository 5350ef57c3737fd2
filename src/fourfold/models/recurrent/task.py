"""Tasks of recurrent models: translation, captioning, documents, language and sequences.

Shapes: B examples, T target tokens, S source positions.
"""

from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from fourfold.core.validation import check_range
from fourfold.data.loading.batches import CaptionBatch, DocumentBatch, PairBatch
from fourfold.data.loading.counter_rng import uniform
from fourfold.errors import InputError
from fourfold.loggers.media import Media
from fourfold.losses import IGNORE_INDEX, token_scores, upcast_fp32
from fourfold.metrics import Mean, Perplexity
from fourfold.models import (
    HierarchicalClassifier,
    HierarchicalClassifierConfig,
    RecurrentCaptioner,
    RecurrentCaptionerConfig,
    RecurrentClassifier,
    RecurrentClassifierConfig,
    RecurrentEncoderDecoder,
    RecurrentEncoderDecoderConfig,
    RecurrentLM,
    RecurrentLMConfig,
)
from fourfold.models.causal_lm.sequence_classification_task import CausalSequenceClassification
from fourfold.models.causal_lm.task import CausalLanguageModeling
from fourfold.models.encoder_decoder.captioning_task import Captioning
from fourfold.models.encoder_decoder.translation_task import Translation
from fourfold.models.masked_lm.sequence_classification_task import SequenceClassification
from fourfold.models.recurrent.hard_attention import marginal_cross_entropy, marginal_token_scores
from fourfold.models.recurrent.hard_attention_task import HardAttention
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig

_SAMPLING_STREAM = 11  # of the counter-based random numbers
_LUONG_2015 = RecurrentEncoderDecoderConfig()


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
        if self.config.mix_outputs and self.label_smoothing:
            message = f"must be 0 for mix_outputs, got {self.label_smoothing:g}"
            raise InputError(message, option="label_smoothing")
        super().__post_init__()
        self.free_running = Perplexity()
        if (self.config.context, self.config.attn_weights) == ("attention", "hard_sample"):
            self.register_buffer("reward_baseline", torch.zeros(()))

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
        doubly_stochastic: Factor lambda on `doubly_stochastic_loss`; not used without attention.
        reward_weight: Factor on the REINFORCE gradient of the attention hard_sample. 1 is unbiased,
            and 0.1 is the factor of the released code.
        entropy_weight: Factor on the entropy of the weights in the objective of hard_sample.
    """

    model_class = RecurrentCaptioner  # type: ignore[assignment]

    config: RecurrentCaptionerConfig = RecurrentCaptionerConfig()  # type: ignore[assignment]
    optimizer: OptimizerConfig = OptimizerConfig(name="adam", lr=2e-4, weight_decay=0.0)
    schedule: ScheduleConfig = ScheduleConfig(name="constant")
    doubly_stochastic: float = 1.0
    reward_weight: float = 1.0
    entropy_weight: float = 0.002

    def __post_init__(self) -> None:
        super().__post_init__()
        self.entropy, self.change = Mean(), Mean()
        if (self.config.image, self.config.attention) == ("attention", "hard_sample"):
            self.register_buffer("reward_baseline", torch.zeros(()))

    def update_metrics(self, batch: CaptionBatch, split: str) -> None:
        super().update_metrics(batch, split)
        if self.attention is None:
            return
        with self.attention.recording() as records:
            output = self._teacher_forced(self.as_pairs(batch))
        counts = output[-1].view(len(batch.ids), -1) != IGNORE_INDEX
        alpha = torch.cat([record[0] for record in records], 1)  # (B, T, S)
        self.entropy.update((torch.special.entr(alpha).sum(-1) * counts).sum(), counts.sum())
        change = (alpha[:, 1:] - alpha[:, :-1]).abs().sum(-1) / 2
        self.change.update((change * counts[:, 1:]).sum(), counts[:, 1:].sum())

    def compute_metrics(self, split: str) -> dict[str, Any]:
        metrics = super().compute_metrics(split)
        if self.attention is not None:
            metrics["attention_entropy"] = self.entropy.compute()
            metrics["attention_change"] = self.change.compute()
        return metrics


@dataclass(eq=False, repr=False)
class DocumentClassification(SequenceClassification):
    """Classification or regression of documents with a hierarchical model (Yang et al. 2016).

    Args:
        optimizer: Options of the optimizer. The paper trains by SGD with momentum, with a learning
            rate from a grid search. The default is Adam.
        schedule: Options of the schedule; the default is constant.
    """

    model_class = HierarchicalClassifier  # type: ignore[assignment]
    batch_class = DocumentBatch  # type: ignore[assignment]
    model: HierarchicalClassifier = field(init=False)  # type: ignore[assignment]
    config: HierarchicalClassifierConfig = HierarchicalClassifierConfig()  # type: ignore[assignment]
    optimizer: OptimizerConfig = OptimizerConfig(name="adam", lr=1e-3, weight_decay=0.0)
    schedule: ScheduleConfig = ScheduleConfig(name="constant")

    def logits(self, batch: DocumentBatch) -> Tensor:  # type: ignore[override]
        return upcast_fp32(self.model(batch.ids, batch.n_words, batch.n_sentences))

    def sample_outputs(self, batch: DocumentBatch, split: str) -> dict[str, Media]:  # type: ignore[override]
        """Build a table of documents with true and predicted labels, under the name samples."""
        texts = [self.tokenizer.decode([*chain(*rows)]) for rows in batch.documents()]
        return {"samples": self._table(texts, batch)}


@dataclass(eq=False, repr=False)
class RecurrentLanguageModeling(CausalLanguageModeling):
    """Causal language modelling with recurrent layers in place of blocks.

    Source: Radford et al. 2018, Table 5.
    """

    model_class = RecurrentLM  # type: ignore[assignment]

    config: RecurrentLMConfig = RecurrentLMConfig()  # type: ignore[assignment]


@dataclass(eq=False, repr=False)
class RecurrentSequenceClassification(CausalSequenceClassification):
    """Classification or regression with recurrent layers in place of blocks.

    Source: Radford et al. 2018, Table 5.
    """

    model_class = RecurrentClassifier  # type: ignore[assignment]

    config: RecurrentClassifierConfig = RecurrentClassifierConfig()  # type: ignore[assignment]
