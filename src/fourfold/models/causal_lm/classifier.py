"""Sequence classifier on a causal language model (GPT-1).

Shapes: B sequences, T tokens, D width of the model, K classes, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fourfold.kernels.dropout import Dropout
from fourfold.layers.heads import ClassHead, pool_tokens
from fourfold.layers.init import initialize
from fourfold.models.causal_lm.model import CausalLM, CausalLMConfig


@dataclass(frozen=True)
class CausalClassifierConfig(CausalLMConfig):
    """Config of a causal LM with a sequence classifier (Radford et al. 2018, section 3.2).

    Args:
        n_classes: Number of classes K, or 1 for regression. None takes that of the data.
        head_dropout: Dropout probability before the classifier.
        bidirectional: All tokens attend to each other, for a model that was trained on masked rows,
            too (GPT-BERT).
    """

    n_classes: int | None = None
    head_dropout: float = 0.1
    bidirectional: bool = False


class CausalClassifier(CausalLM):
    """Sequence classifier on the last token of a causal LM (Radford et al. 2018, section 3.2).

    A call of the model returns the vocabulary logits (B, T, V), as in `CausalLM`, because GPT-1 is
    fine-tuned with an auxiliary language-model loss. `classify` returns the class logits.
    """

    config: CausalClassifierConfig

    def __init__(self, config: CausalClassifierConfig) -> None:
        super().__init__(config)
        self.dropout = Dropout(config.head_dropout)
        self.classifier = ClassHead(config.d_model, config.n_classes)
        initialize(self.classifier, config.init)

    def hidden(self, ids: Tensor, *, prefix: Tensor | None = None, **given: Any) -> Tensor:
        if getattr(self.config, "bidirectional", False) and prefix is None:
            prefix = torch.ones_like(ids, dtype=torch.bool)
        return super().hidden(ids, prefix=prefix, **given)

    def classify(self, h: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map the last real hidden state of each sequence, of h (B, T, D), to logits (B, K)."""
        return self.classifier(self.dropout(pool_tokens(h, mask, "last").squeeze(1)))
