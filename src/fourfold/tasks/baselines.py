"""Tasks of the baseline models: LSTM language model and classifier, ResNet image classifier."""

from torch import Tensor

from fourfold.checkpoints.init_from import InitFrom
from fourfold.data.loading.batches import CausalBatch, SequenceBatch
from fourfold.loggers.media import Media
from fourfold.models import (
    RecurrentClassifier,
    RecurrentClassifierConfig,
    RecurrentLM,
    RecurrentLMConfig,
    ResNet,
    ResNetConfig,
)
from fourfold.models.finetuning.config import TuningConfig
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.tasks.causal_lm import CausalLanguageModeling
from fourfold.tasks.image_classification import ImageClassification
from fourfold.tasks.sequence_classification import CausalSequenceClassification


class RecurrentLanguageModeling(CausalLanguageModeling):
    """Causal language modelling with an LSTM in place of the blocks (GPT-1, Table 5).

    Args:
        config: Config of the model.
        optimizer: See `CausalLanguageModeling`, as for all further arguments.
    """

    model_class = RecurrentLM  # type: ignore[assignment]
    config_class = RecurrentLMConfig  # type: ignore[assignment]

    def __init__(
        self,
        config: RecurrentLMConfig = RecurrentLMConfig(),  # noqa: B008  (frozen)
        optimizer: OptimizerConfig = OptimizerConfig(  # noqa: B008
            lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1
        ),
        schedule: ScheduleConfig = ScheduleConfig(  # noqa: B008
            name="cosine", warmup_steps=2000, min_lr=6e-5
        ),
        init_from: InitFrom = None,
        tuning: TuningConfig = TuningConfig(),  # noqa: B008
    ) -> None:
        super().__init__(config, optimizer, schedule, init_from, tuning)  # type: ignore[arg-type]

    def sample_outputs(self, batch: CausalBatch, split: str) -> dict[str, Media]:
        """Return nothing: an LSTM has neither attention maps nor a key-value cache."""
        return {}


class RecurrentSequenceClassification(CausalSequenceClassification):
    """Classification or regression with an LSTM in place of the blocks (GPT-1, Table 5).

    Args:
        config: Config of the model.
        optimizer: See `CausalSequenceClassification`, as for all further arguments.
    """

    model_class = RecurrentClassifier  # type: ignore[assignment]
    config_class = RecurrentClassifierConfig  # type: ignore[assignment]

    def __init__(
        self,
        config: RecurrentClassifierConfig = RecurrentClassifierConfig(),  # noqa: B008  (frozen)
        optimizer: OptimizerConfig = OptimizerConfig(lr=6.25e-5),  # noqa: B008
        schedule: ScheduleConfig = ScheduleConfig(name="linear"),  # noqa: B008
        label_smoothing: float = 0.0,
        lm_weight: float = 0.5,
        init_from: InitFrom = None,
        tuning: TuningConfig = TuningConfig(),  # noqa: B008
    ) -> None:
        super().__init__(
            config,  # type: ignore[arg-type]  # not of a transformer
            optimizer,
            schedule,
            label_smoothing,
            lm_weight,
            init_from,
            tuning,
        )

    def sample_outputs(self, batch: SequenceBatch, split: str) -> dict[str, Media]:
        """Return the first texts with true and predicted labels; an LSTM has no attention."""
        return {"samples": super().sample_outputs(batch, split)["samples"]}


class ConvolutionalClassification(ImageClassification):
    """Image classification with a ResNet, the baseline of Vision Transformers.

    `fourfold plan` and `fourfold export` do not support it. Its batch norms make an optimizer step
    depend on the division of a batch into micro-batches and devices.

    Args:
        config: Config of the model.
        optimizer: See `ImageClassification`, as for all further arguments.
    """

    model_class = ResNet  # type: ignore[assignment]
    config_class = ResNetConfig  # type: ignore[assignment]

    def __init__(
        self,
        config: ResNetConfig = ResNetConfig(),  # noqa: B008  (frozen)
        optimizer: OptimizerConfig = OptimizerConfig(  # noqa: B008
            lr=1e-3, weight_decay=0.05, weight_decay_params="linear"
        ),
        schedule: ScheduleConfig = ScheduleConfig(name="cosine", min_lr=1e-5),  # noqa: B008
        label_smoothing: float = 0.0,
        teacher: str | None = None,
        distillation: str = "hard",
        teacher_weight: float = 0.5,
        temperature: float = 3.0,
        init_from: InitFrom = None,
        tuning: TuningConfig = TuningConfig(),  # noqa: B008
    ) -> None:
        super().__init__(
            config,  # type: ignore[arg-type]  # not of a ViT
            optimizer,
            schedule,
            label_smoothing,
            teacher,
            distillation,
            teacher_weight,
            temperature,
            init_from,
            tuning,
        )

    def head_logits(self, images: Tensor) -> list[Tensor]:
        """Return the logits (B, K) of the only head."""
        return [self.model(images)]
