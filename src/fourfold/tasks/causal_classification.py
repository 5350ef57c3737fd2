"""Sentences classified by a causal LM that goes on learning the language (GPT-1)."""

from typing import Any

from torch import Tensor

from fourfold.data.batch import SequenceBatch
from fourfold.losses import IGNORED, exact, linear_cross_entropy
from fourfold.models import CausalClassifier, CausalClassifierConfig
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.tasks.sequence_classification import SequenceClassification
from fourfold.tasks.window import count_of


class CausalSequenceClassification(SequenceClassification):
    """Learns a class, or a number, from the state of the last token (Radford et al. 2018, 3.2).

    Args:
        config: The model.
        optimizer: Default: GPT-1's for fine-tuning (section 4.1).
        schedule: Default: linear to 0.
        label_smoothing: Spread evenly over all classes.
        lm_weight: Of the language model's loss beside the classifier's (lambda of eq. 5); a row
            counts by the mean over its tokens, as in the paper's code.
        start: `init_from` and `tuning` of `Task`.
    """

    model_class = CausalClassifier  # type: ignore[assignment]
    config_class = CausalClassifierConfig  # type: ignore[assignment]

    def __init__(
        self,
        config: CausalClassifierConfig = CausalClassifierConfig(),  # noqa: B008  (frozen)
        optimizer: OptimizerConfig = OptimizerConfig(lr=6.25e-5),  # noqa: B008
        schedule: ScheduleConfig = ScheduleConfig(name="linear"),  # noqa: B008
        label_smoothing: float = 0.0,
        lm_weight: float = 0.5,
        **start: Any,
    ) -> None:
        given: Any = config  # of another family, with all that the parent asks of it
        super().__init__(given, optimizer, schedule, label_smoothing, lm_weight=lm_weight, **start)
        self.lm_weight = lm_weight

    def logits(self, batch: SequenceBatch) -> Tensor:
        """(B, K) in fp32."""
        return self._classify(self.model.hidden(batch.ids, batch.mask), batch)

    def _classify(self, h: Tensor, batch: SequenceBatch) -> Tensor:
        logits: Tensor = self.model.classify(h, batch.mask)
        return exact(logits)

    def step(self, batch: SequenceBatch) -> tuple[Tensor, Tensor]:
        """The classifier's loss, and lambda times the mean over each row's next tokens."""
        h = self.model.hidden(batch.ids, batch.mask)  # (B, T, D)
        loss = self._loss(self._classify(h, batch), batch.labels, self.label_smoothing)
        if self.lm_weight:
            real = batch.mask[:, 1:]
            targets = batch.ids[:, 1:].masked_fill(~real, IGNORED)
            weights = real / real.sum(1, keepdim=True).clamp(min=1)  # (B, T-1)
            x, matrix, bias = self.model.head.output(h[:, :-1].flatten(0, 1))
            language = linear_cross_entropy(
                x, matrix, bias, targets.flatten(), weights=weights.flatten(), normalizer=1.0
            )
            loss = loss + self.lm_weight * language
        return loss, count_of(len(batch.ids), loss)
