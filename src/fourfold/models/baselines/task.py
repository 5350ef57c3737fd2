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
    RecurrentClassifier,
    RecurrentClassifierConfig,
    RecurrentLM,
    RecurrentLMConfig,
    ResNet,
    ResNetConfig,
)
from fourfold.models.causal_lm.task import CausalLanguageModeling
from fourfold.models.masked_lm.sequence_classification_task import (
    CausalSequenceClassification,
    SequenceClassification,
)
from fourfold.models.vit.task import ImageClassification


@dataclass(eq=False, repr=False)
class RecurrentLanguageModeling(CausalLanguageModeling):
    """Causal language modelling with recurrent layers in place of blocks (GPT-1, Table 5).

    Source: Radford et al. 2018, Table 5.

    The arguments that are not described here are those of `CausalLanguageModeling`.

    Args:
        config: Config of the model.

    Example:
        >>> config = RecurrentLMConfig(d_model=16, hidden_size=32, cell="gru", vocab_size=100)
        >>> task = RecurrentLanguageModeling(config)
        >>> task.configure_model()
        >>> task.model.stack.layers
        GRU(16, 32, batch_first=True)
    """

    model_class = RecurrentLM  # type: ignore[assignment]

    config: RecurrentLMConfig = RecurrentLMConfig()  # type: ignore[assignment]


@dataclass(eq=False, repr=False)
class ConvolutionalLanguageModeling(CausalLanguageModeling):
    """Causal language modelling with the convolutions of ConvS2S or ByteNet in place of attention.

    Source: Gehring et al. 2017 (ConvS2S); Kalchbrenner et al. 2016 (ByteNet).

    `fourfold plan` does not support this task. The arguments that are not described here are those
    of `CausalLanguageModeling`.

    Args:
        config: Config of the model.

    Example:
        >>> config = ConvolutionalLMConfig(d_model=16, n_layers=2, kernel_size=3, vocab_size=100)
        >>> task = ConvolutionalLanguageModeling(config)
        >>> task.configure_model()
        >>> task.config.reach  # tokens before the last input token
        4
    """

    model_class = ConvolutionalLM  # type: ignore[assignment]

    config: ConvolutionalLMConfig = ConvolutionalLMConfig()  # type: ignore[assignment]

    def sample_outputs(self, batch: CausalBatch, split: str) -> dict[str, Media]:
        """Return an empty dictionary, because generation without a cache would take too long."""
        return {}


@dataclass(eq=False, repr=False)
class RecurrentSequenceClassification(CausalSequenceClassification):
    """Classification or regression with recurrent layers in place of blocks (GPT-1, Table 5).

    Source: Radford et al. 2018, Table 5.

    The arguments that are not described here are those of `CausalSequenceClassification`.

    Args:
        config: Config of the model.

    Example:
        >>> config = RecurrentClassifierConfig(hidden_size=32, vocab_size=100, n_classes=2)
        >>> task = RecurrentSequenceClassification(config, lm_weight=0.5)
        >>> task.configure_model()
        >>> task.model.classifier
        Linear(in_features=768, out_features=2, bias=True)
    """

    model_class = RecurrentClassifier  # type: ignore[assignment]

    config: RecurrentClassifierConfig = RecurrentClassifierConfig()  # type: ignore[assignment]


@dataclass(eq=False, repr=False)
class LadderLanguageModeling(CausalLanguageModeling):
    """Causal language modelling with only some components of a transformer block, as an ablation.

    The field `config.rung` selects the components. The arguments that are not described here are
    those of `CausalLanguageModeling`.

    Args:
        config: Config of the model.

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
    """Classification or regression with only some components of a transformer block.

    The field `config.rung` selects the components. The arguments that are not described here are
    those of `SequenceClassification`.

    Args:
        config: Config of the model.

    Example:
        >>> shape = {"d_model": 16, "n_layers": 2, "n_heads": 2, "vocab_size": 100, "n_classes": 2}
        >>> task = LadderSequenceClassification(LadderClassifierConfig(**shape, rung="residual"))
        >>> task.configure_model()
        >>> sum(weight.numel() for weight in task.model.stack.parameters())
        2176
    """

    model_class = LadderClassifier

    config: LadderClassifierConfig = LadderClassifierConfig()


@dataclass(eq=False, repr=False)
class ConvolutionalClassification(ImageClassification):
    """Image classification with a ResNet, the baseline of Vision Transformers.

    Source: He et al. 2015.

    `fourfold plan` and `fourfold export` do not support this task. The batch norms of a ResNet make
    an optimizer step depend on the division of a batch into micro-batches and devices. The
    arguments that are not described here are those of `ImageClassification`.

    Args:
        config: Config of the model.

    Example:
        >>> from lightning import Trainer
        >>> from fourfold.data import ImageData
        >>> config = ResNetConfig(stem="cifar", image_size=8, n_channels=1, n_classes=None)
        >>> task = ConvolutionalClassification(config)
        >>> quiet = {"enable_progress_bar": False, "enable_model_summary": False}
        >>> trainer = Trainer(fast_dev_run=True, **quiet)
        >>> trainer.fit(task, ImageData("digits", batch_size=8))
        >>> "val/top1" in trainer.callback_metrics
        True
    """

    model_class = ResNet  # type: ignore[assignment]

    config: ResNetConfig = ResNetConfig()  # type: ignore[assignment]

    def head_logits(self, images: Tensor) -> list[Tensor]:
        """Compute the logits of images (B, C, side, side).

        Returns:
            List of one tensor (B, K), because the model has one head.
        """
        return [self.model(images)]
