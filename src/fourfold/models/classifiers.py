"""Encoders and decoders with the head of a downstream task in place of their vocabulary.

The names of what they share with `MaskedLM` and `CausalLM` are the same, so that weights of one
fit the other. Shapes: B batch, T tokens, D model width, K classes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fourfold.core.config import check_positive, check_word
from fourfold.core.init import initialise
from fourfold.kernels.dropout import Dropout
from fourfold.models.causal_lm import CausalLM, CausalLMConfig
from fourfold.models.heads import PooledClassifier
from fourfold.models.reader import Reader, ReaderConfig


@dataclass(frozen=True)
class ClassifierConfig(ReaderConfig):
    """An encoder with classes.

    Args:
        n_classes: K; None in a run's config means: the data's.
        head_dropout: Before the classifier.
    """

    n_classes: int | None = None
    head_dropout: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("n_classes", self.n_classes)


@dataclass(frozen=True)
class SequenceClassifierConfig(ClassifierConfig):
    """An encoder that gives a sentence, or a pair, a class or, where K is 1, a number.

    Args:
        pool: What is classified: first (the first token, as BERT), last (as a causal LM must) or
            mean (of all real tokens, as sentence encoders).
    """

    pool: str = "first"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_word("pool", self.pool, tuple(POOLS))


class SequenceClassifier(Reader):
    """Classifies a sequence by tanh(dense(pooled state)) and a linear layer (Devlin 2018, 4.1)."""

    config: SequenceClassifierConfig

    def __init__(self, config: SequenceClassifierConfig) -> None:
        super().__init__(config)
        assert config.n_classes is not None, "the classes are known once a model is built"
        self.classifier = PooledClassifier(self.width, config.n_classes, config.head_dropout)
        initialise(self.classifier, config.init)

    def read(self, h: Tensor, mask: Tensor | None) -> Tensor:
        """(B, T, D) to (B, K)."""
        return self.classifier(POOLS[self.config.pool](h, mask))


@dataclass(frozen=True)
class TokenClassifierConfig(ClassifierConfig):
    """An encoder that gives each token a class."""


class TokenClassifier(Reader):
    """Classifies each token by a linear layer on its state (Devlin 2018, 5.3)."""

    config: TokenClassifierConfig

    def __init__(self, config: TokenClassifierConfig) -> None:
        super().__init__(config)
        assert config.n_classes is not None, "the classes are known once a model is built"
        self.dropout = Dropout(config.head_dropout)
        self.classifier = nn.Linear(self.width, config.n_classes)
        initialise(self.classifier, config.init)

    def read(self, h: Tensor, mask: Tensor | None) -> Tensor:
        """(B, T, D) to (B, T, K)."""
        return self.classifier(self.dropout(h))


@dataclass(frozen=True)
class SpanExtractorConfig(ReaderConfig):
    """An encoder that finds where an answer begins and ends."""


class SpanExtractor(Reader):
    """Scores each token as an answer's first and last by a linear layer (Devlin 2018, 4.2)."""

    config: SpanExtractorConfig

    def __init__(self, config: SpanExtractorConfig) -> None:
        super().__init__(config)
        self.span = nn.Linear(self.width, 2)
        initialise(self.span, config.init)

    def read(self, h: Tensor, mask: Tensor | None) -> Tensor:
        """(B, T, D) to (B, T, 2)."""
        return self.span(h)


@dataclass(frozen=True)
class CausalClassifierConfig(CausalLMConfig):
    """A causal LM that also gives a sequence a class or a number (GPT-1, section 3.2).

    Args:
        n_classes: K; 1 for a number (regression); None in a run's config means: the data's.
        head_dropout: Before the classifier.
    """

    n_classes: int | None = None
    head_dropout: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("n_classes", self.n_classes)


class CausalClassifier(CausalLM):
    """Classifies a sequence by a linear layer on the state of its last token.

    It keeps the vocabulary, since GPT-1 goes on learning the language beside the task.
    """

    config: CausalClassifierConfig

    def __init__(self, config: CausalClassifierConfig) -> None:
        super().__init__(config)
        assert config.n_classes is not None, "the classes are known once a model is built"
        self.dropout = Dropout(config.head_dropout)
        self.classifier = nn.Linear(config.d_model, config.n_classes)
        initialise(self.classifier, config.init)

    def classify(self, h: Tensor, mask: Tensor | None = None) -> Tensor:
        """Hidden states (B, T, D) to logits (B, K) of each row's last real token."""
        return self.classifier(self.dropout(_last(h, mask).squeeze(1)))


def _first(h: Tensor, mask: Tensor | None) -> Tensor:
    return h[:, :1]


def _mean(h: Tensor, mask: Tensor | None) -> Tensor:
    """Over real tokens."""
    if mask is None:
        return h.mean(1, keepdim=True)
    weights = mask.unsqueeze(-1).to(h.dtype)  # (B, T, 1)
    return (h * weights).sum(1, keepdim=True) / weights.sum(1, keepdim=True).clamp(min=1)


def _last(h: Tensor, mask: Tensor | None) -> Tensor:
    """Wherever the padding stands."""
    if mask is None:
        return h[:, -1:]
    places = torch.arange(h.shape[1], device=h.device)
    return h[torch.arange(len(h), device=h.device), (places * mask).argmax(1)].unsqueeze(1)


# What of a row is classified: states (B, T, D), of which mask (B, T) are real, to (B, 1, D).
POOLS: dict[str, Callable[[Tensor, Tensor | None], Tensor]] = {
    "first": _first,  # BERT's [CLS]
    "last": _last,  # which alone has seen all of a row from left to right (GPT-1)
    "mean": _mean,  # sentence encoders
}
