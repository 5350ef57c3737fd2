"""Image classification with a residual network, beside which Vision Transformers are put."""

from typing import Any

from torch import Tensor

from fourfold.models import ResNet, ResNetConfig
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.tasks.image_classification import ImageClassification


class ConvolutionalClassification(ImageClassification):
    """Learns classes of images as `ImageClassification` does, with a ResNet.

    It has no attention to show, `fourfold plan` and `fourfold export` do not know it, and its batch
    norms make a step depend on how a batch is cut into micro-batches and devices.

    Args:
        config: The model.
        optimizer: As of `ImageClassification`.
        schedule: Likewise.
        options: Likewise.
    """

    model_class = ResNet  # type: ignore[assignment]
    config_class = ResNetConfig  # type: ignore[assignment]

    def __init__(
        self,
        config: ResNetConfig = ResNetConfig(),  # noqa: B008  (frozen)
        optimizer: OptimizerConfig = OptimizerConfig(  # noqa: B008
            lr=1e-3, weight_decay=0.05, decay="linear"
        ),
        schedule: ScheduleConfig = ScheduleConfig(name="cosine", min_lr=1e-5),  # noqa: B008
        label_smoothing: float = 0.0,
        **options: Any,
    ) -> None:
        given: Any = config  # no transformer's, with all that the parent asks of it
        super().__init__(given, optimizer, schedule, label_smoothing, **options)

    def heads(self, images: Tensor) -> list[Tensor]:
        """Logits (B, K) of its one head."""
        return [self.model(images)]
