"""Any task as text to text with T5 (Raffel et al. 2019)."""

from typing import Any

from fourfold.models import T5, T5Config
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.tasks.translation import Translation


class TextToText(Translation):
    """Learns pairs of texts as `Translation` does, with a T5.

    A text begins with the tokenizer's first token, or as the released weights expect it, with the
    padding token, where the tokenizer has no other.

    Args:
        config: The model.
        optimizer: Default: Adam where the paper has AdaFactor, which is not here.
        schedule: Default: 0.1 / sqrt(step) after 10,000 steps, a tenth of the paper's rate (3.1.2),
            which is AdaFactor's; the steps before grow linearly, where the paper's are all alike.
        label_smoothing: Default: none, as in the paper.
        options: As `Translation`; its beams of 4 with alpha 0.6 are T5's, too (3.7).
    """

    model_class = T5
    config_class = T5Config

    def __init__(
        self,
        config: T5Config = T5Config(),  # noqa: B008  (frozen)
        optimizer: OptimizerConfig = OptimizerConfig(name="adam", weight_decay=0.0),  # noqa: B008
        schedule: ScheduleConfig = ScheduleConfig(  # noqa: B008
            name="inverse_sqrt", warmup_steps=10_000
        ),
        label_smoothing: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(config, optimizer, schedule, label_smoothing, **options)
