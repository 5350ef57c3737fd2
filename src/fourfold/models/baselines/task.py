"""Tasks of the baseline models: recurrent and convolutional models, ablations, and ResNet."""

from dataclasses import dataclass

from torch import Tensor

from fourfold.data.loading.batches import CausalBatch
from fourfold.loggers.media import Media
from fourfold.models import (
    ConvolutionalLM,
    ConvolutionalLMConfig,
    LadderClassifier,
    LadderClassifierConfig,
    LadderLM,
    LadderLMConfig,
    ResNet,
    ResNetConfig,
)
from fourfold.models.causal_lm.task import CausalLanguageModeling
from fourfold.models.masked_lm.sequence_classification_task import SequenceClassification
from fourfold.models.vit.task import ImageClassification


@dataclass(eq=False, repr=False)
class ConvolutionalLanguageModeling(CausalLanguageModeling):
    """Causal language modelling with the convolutions of ConvS2S or ByteNet in place of attention.

    Source: Gehring et al. 2017 (ConvS2S); Kalchbrenner et al. 2016 (ByteNet). `fourfold plan` does
    not support this task.
    """

    model_class = ConvolutionalLM  # type: ignore[assignment]

    config: ConvolutionalLMConfig = ConvolutionalLMConfig()  # type: ignore[assignment]

    def sample_outputs(self, batch: CausalBatch, split: str) -> dict[str, Media]:
        """Return an empty dictionary, because generation without a cache would take too long."""
        return {}


@dataclass(eq=False, repr=False)
class LadderLanguageModeling(CausalLanguageModeling):
    """Causal language modelling with the components of a block that `config.rung` selects.

    Example:
        >>> shape = {"d_model": 16, "n_layers": 2, "n_heads": 2, "vocab_size": 100}
        >>> for rung in ("parameter_free", "heads", "full"):
        ...     task = LadderLanguageModeling(LadderLMConfig(**shape, rung=rung))
        ...     task.configure_model()
        ...     print(rung, sum(weight.numel() for weight in task.model.stack.parameters()))
        parameter_free 0
        heads 2176
        full 205120
    """

    model_class = LadderLM

    config: LadderLMConfig = LadderLMConfig()


@dataclass(eq=False, repr=False)
class LadderSequenceClassification(SequenceClassification):
    """Classification or regression with the components of a block that `config.rung` selects."""

    model_class = LadderClassifier

    config: LadderClassifierConfig = LadderClassifierConfig()


@dataclass(eq=False, repr=False)
class ConvolutionalClassification(ImageClassification):
    """Image classification with a ResNet, the baseline of Vision Transformers (He et al. 2015).

    `fourfold plan` and `fourfold export` do not support this task. The batch norms of a ResNet make
    an optimizer step depend on the division of a batch into micro-batches and devices.
    """

    model_class = ResNet  # type: ignore[assignment]

    config: ResNetConfig = ResNetConfig()  # type: ignore[assignment]

    def head_logits(self, images: Tensor) -> list[Tensor]:
        return [self.model(images)]
