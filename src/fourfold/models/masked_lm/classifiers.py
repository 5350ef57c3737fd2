"""Sequence classifiers, token classifiers and answer-span extractors on encoders.

Parameters have the same names as in `MaskedLM`, so that their weights can be loaded.
Shapes: B batch, T tokens, D model width, K classes.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from fourfold.kernels.dropout import Dropout
from fourfold.layers.heads import ClassHead, PooledClassifier, pool_tokens
from fourfold.layers.init import initialize
from fourfold.models.masked_lm.encoder_features import EncoderWithFeatures, FeatureConfig


@dataclass(frozen=True)
class ClassifierConfig(FeatureConfig):
    """Config of an encoder with a classifier.

    Args:
        n_classes: Number of classes K. None takes that of the data.
        head_dropout: Dropout probability before the classifier.
    """

    n_classes: int | None = None
    head_dropout: float = 0.1


@dataclass(frozen=True)
class SequenceClassifierConfig(ClassifierConfig):
    """Config of an encoder that classifies a sentence or a pair (Devlin et al. 2018, section 4.1).

    With `n_classes` = 1 the model predicts a number (regression).

    Args:
        pool: Hidden state that is classified: first (first token, as in BERT), last (last real
            token, for a causal encoder) or mean (mean of all real tokens, as in sentence encoders).
        head_norm: Apply the activation and a norm, instead of tanh, after the dense layer of the
            classifier, which has a bias only if the blocks have biases (ModernBERT).
    """

    pool: Literal["first", "last", "mean"] = "first"
    head_norm: bool = False


class SequenceClassifier(EncoderWithFeatures):
    """Sequence classifier on an encoder (Devlin et al. 2018, section 4.1).

    The hidden states are pooled into one vector (see `config.pool`), which a dense layer with tanh
    (or see `config.head_norm`), dropout and a linear layer map to the logits (B, K).
    """

    reads_pairs = True

    config: SequenceClassifierConfig

    def __init__(self, config: SequenceClassifierConfig) -> None:
        super().__init__(config)
        sizes = self.width, config.n_classes, config.head_dropout
        self.classifier = PooledClassifier(*sizes, config if config.head_norm else None)
        initialize(self.classifier, config.init)

    def logits(self, h: Tensor, mask: Tensor | None = None) -> Tensor:
        """Pool hidden states (B, T, D), and map the pooled vectors to logits (B, K)."""
        return self.classifier(pool_tokens(h, mask, self.config.pool))


@dataclass(frozen=True)
class TokenClassifierConfig(ClassifierConfig):
    """Config of an encoder that classifies each token (Devlin et al. 2018, section 5.3)."""


class TokenClassifier(EncoderWithFeatures):
    """Token classifier: a linear layer on each hidden state (Devlin et al. 2018, section 5.3)."""

    config: TokenClassifierConfig

    def __init__(self, config: TokenClassifierConfig) -> None:
        super().__init__(config)
        self.dropout = Dropout(config.head_dropout)
        self.classifier = ClassHead(self.width, config.n_classes)
        initialize(self.classifier, config.init)

    def logits(self, h: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map hidden states (B, T, D) to logits (B, T, K). The mask is ignored."""
        return self.classifier(self.dropout(h))


@dataclass(frozen=True)
class SpanExtractorConfig(FeatureConfig):
    """Config of an encoder that predicts the ends of an answer (Devlin et al. 2018, 4.2)."""


class SpanExtractor(EncoderWithFeatures):
    """Extractive question answering: start and end logits of each token (Devlin et al. 2018)."""

    reads_pairs = True

    def __init__(self, config: SpanExtractorConfig) -> None:
        super().__init__(config)
        self.span = nn.Linear(self.width, 2)
        initialize(self.span, config.init)

    def logits(self, h: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map hidden states (B, T, D) to logits (B, T, 2): start and end of the answer."""
        return self.span(h)
