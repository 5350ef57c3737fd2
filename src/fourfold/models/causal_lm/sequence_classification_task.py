"""Classification of sequences with a causal LM.

Shapes: B sequences, T tokens, K classes.
"""

from dataclasses import dataclass, field

from torch import Tensor

from fourfold.data.loading.batches import SequenceBatch
from fourfold.errors import InputError
from fourfold.losses import IGNORE_INDEX, upcast_fp32
from fourfold.models import CausalClassifier, CausalClassifierConfig
from fourfold.models.masked_lm.sequence_classification_task import SequenceClassification
from fourfold.optim import OptimizerConfig


@dataclass(eq=False, repr=False)
class CausalSequenceClassification(SequenceClassification):
    """Classification or regression of a text with a causal LM (GPT-1).

    The classifier reads the hidden state of the last token. The language-model loss of the same
    text is added to the loss of the classifier (Radford et al. 2018, section 3.2).

    Args:
        optimizer: Options of the optimizer; the default is GPT-1's for fine-tuning (section 4.1).
        lm_weight: Weight of the language-model loss (lambda of eq. 5). The language-model loss of a
            text is the mean over the tokens of the text, as in the paper's code, and has the weight
            of the text's class (`class_weights`). Must be 0 with `config.bidirectional`, since the
            next token is then visible.
    """

    model_class = CausalClassifier  # type: ignore[assignment]
    model: CausalClassifier = field(init=False)  # type: ignore[assignment]
    config: CausalClassifierConfig = CausalClassifierConfig()  # type: ignore[assignment]
    optimizer: OptimizerConfig = OptimizerConfig(lr=6.25e-5)
    lm_weight: float = 0.5

    def __post_init__(self) -> None:
        if getattr(self.config, "bidirectional", False) and self.lm_weight:
            message = f"must be 0 with bidirectional attention, got {self.lm_weight:g}"
            raise InputError(message, option="lm_weight")
        super().__post_init__()

    def _classify(self, batch: SequenceBatch) -> tuple[Tensor, Tensor]:
        """Return the hidden states (B, T, D), and the logits (B, K) in fp32."""
        h = self.model.hidden(batch.ids, mask=batch.mask)
        return h, upcast_fp32(self.model.classify(h, batch.mask))

    def logits(self, batch: SequenceBatch) -> Tensor:
        return self._classify(batch)[1]

    def step(self, batch: SequenceBatch) -> tuple[Tensor, Tensor]:
        """Return the loss of the classifier plus `lm_weight` times that of the language model."""
        h, logits = self._classify(batch)
        loss, divisors = self.class_loss(logits, batch.labels)
        if self.lm_weight:
            real = batch.mask[:, 1:]
            targets = batch.ids[:, 1:].masked_fill(~real, IGNORE_INDEX)
            weights = real / real.sum(1, keepdim=True).clamp(min=1) * divisors[:, None]  # (B, T-1)
            lm_loss = self.model.head.loss(h[:, :-1], targets, weights=weights, normalizer=1.0)
            loss = loss + self.lm_weight * lm_loss
        return loss, divisors.sum()
