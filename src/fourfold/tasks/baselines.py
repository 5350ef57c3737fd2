"""Tasks of the baselines: recurrent, convolutional and ladder models, and ResNet."""

from dataclasses import dataclass

from torch import Tensor

from fourfold.data.loading.batches import CausalBatch, SequenceBatch
from fourfold.loggers.media import AttentionMaps, Media
from fourfold.models import (
    ConvolutionalLM,
    ConvolutionalLMConfig,
    LadderClassifier,
    LadderClassifierConfig,
    LadderLM,
    LadderLMConfig,
    RecurrentClassifier,
    RecurrentClassifierConfig,
    RecurrentLM,
    RecurrentLMConfig,
    ResNet,
    ResNetConfig,
)
from fourfold.tasks.causal_lm import CausalLanguageModeling
from fourfold.tasks.image_classification import ImageClassification
from fourfold.tasks.sequence_classification import (
    CausalSequenceClassification,
    SequenceClassification,
)


@dataclass(eq=False, repr=False)
class RecurrentLanguageModeling(CausalLanguageModeling):
    """Causal language modelling with recurrent layers in place of blocks (GPT-1, Table 5).

    Args:
        config: Config of the model.
        optimizer: See `CausalLanguageModeling`, also for all further arguments.
    """

    model_class = RecurrentLM  # type: ignore[assignment]

    config: RecurrentLMConfig = RecurrentLMConfig()  # type: ignore[assignment]

    def sample_outputs(self, batch: CausalBatch, split: str) -> dict[str, Media]:
        """Return beginnings of texts with true and generated continuations."""
        return {"samples": super().sample_outputs(batch, split)["samples"]}


@dataclass(eq=False, repr=False)
class ConvolutionalLanguageModeling(CausalLanguageModeling):
    """Causal language modelling with the convolutions of ConvS2S or ByteNet in place of attention.

    `fourfold plan` does not support this task.

    Args:
        config: Config of the model.
        optimizer: See `CausalLanguageModeling`, also for all further arguments.
    """

    model_class = ConvolutionalLM  # type: ignore[assignment]

    config: ConvolutionalLMConfig = ConvolutionalLMConfig()  # type: ignore[assignment]

    def sample_outputs(self, batch: CausalBatch, split: str) -> dict[str, Media]:
        """Return an empty dict: the model has neither attention maps nor a cache for generation."""
        return {}


@dataclass(eq=False, repr=False)
class RecurrentSequenceClassification(CausalSequenceClassification):
    """Classification or regression with recurrent layers in place of blocks (GPT-1, Table 5).

    Args:
        config: Config of the model.
        optimizer: See `CausalSequenceClassification`, also for all further arguments.
    """

    model_class = RecurrentClassifier  # type: ignore[assignment]

    config: RecurrentClassifierConfig = RecurrentClassifierConfig()  # type: ignore[assignment]

    def sample_outputs(self, batch: SequenceBatch, split: str) -> dict[str, Media]:
        """Return the batch's texts with true and predicted labels, without attention maps."""
        return {"samples": super().sample_outputs(batch, split)["samples"]}


@dataclass(eq=False, repr=False)
class LadderLanguageModeling(CausalLanguageModeling):
    """Causal language modelling on one rung of the ladder from no attention to the transformer.

    Args:
        config: Config of the model.
        optimizer: See `CausalLanguageModeling`, also for all further arguments.
    """

    model_class = LadderLM

    config: LadderLMConfig = LadderLMConfig()

    def sample_outputs(self, batch: CausalBatch, split: str) -> dict[str, Media]:
        """Return beginnings of texts with continuations, and attention maps from rung heads on."""
        return without_empty_maps(super().sample_outputs(batch, split))


@dataclass(eq=False, repr=False)
class LadderSequenceClassification(SequenceClassification):
    """Classification or regression on one rung of the ladder from no attention to the transformer.

    Args:
        config: Config of the model.
        optimizer: See `SequenceClassification`, also for all further arguments.
    """

    model_class = LadderClassifier

    config: LadderClassifierConfig = LadderClassifierConfig()

    def sample_outputs(self, batch: SequenceBatch, split: str) -> dict[str, Media]:
        """Return texts with predicted labels, and attention maps from the rung heads on."""
        return without_empty_maps(super().sample_outputs(batch, split))


def without_empty_maps(media: dict[str, Media]) -> dict[str, Media]:
    """Remove attention maps of a model without `Attention` from the samples of a task."""
    return {k: x for k, x in media.items() if not isinstance(x, AttentionMaps) or x.maps}


@dataclass(eq=False, repr=False)
class ConvolutionalClassification(ImageClassification):
    """Image classification with a ResNet, the baseline of Vision Transformers.

    `fourfold plan` and `fourfold export` do not support this task. The batch norms of a ResNet make
    an optimizer step depend on the division of a batch into micro-batches and devices.

    Args:
        config: Config of the model.
        optimizer: See `ImageClassification`, also for all further arguments.
    """

    model_class = ResNet  # type: ignore[assignment]

    config: ResNetConfig = ResNetConfig()  # type: ignore[assignment]

    def head_logits(self, images: Tensor) -> list[Tensor]:
        """Return a list whose only element is the logits (B, K), since the model has one head."""
        return [self.model(images)]
