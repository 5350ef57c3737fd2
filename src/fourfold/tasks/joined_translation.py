"""Translation with an encoder and a decoder that were pre-trained apart (Rothe et al. 2020)."""

from typing import Any

from fourfold.core.errors import InputError
from fourfold.models import Joined, JoinedConfig
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.tasks.translation import Translation


class JoinedTranslation(Translation):
    """Learns pairs of texts as `Translation` does, from `init_from: {encoder: A, decoder: B}`.

    Args:
        config: The model.
        optimizer: Default: Adam, whose 0.05 is a factor on the schedule.
        schedule: Default: that of Vaswani et al. 2017, with a longer warm-up: the rate is at most
            9e-6 at width 768, at which pre-trained weights survive.
        label_smoothing: Default: none.
        options: As `Translation`.
    """

    model_class = Joined
    config_class = JoinedConfig
    config: JoinedConfig

    def __init__(
        self,
        config: JoinedConfig = JoinedConfig(),  # noqa: B008  (frozen)
        optimizer: OptimizerConfig = OptimizerConfig(  # noqa: B008
            name="adam", lr=0.05, weight_decay=0.0
        ),
        schedule: ScheduleConfig = ScheduleConfig(name="noam", warmup_steps=40_000),  # noqa: B008
        label_smoothing: float = 0.0,
        **options: Any,
    ) -> None:
        # What is said of the config here is all that a `Translation` asks of one.
        super().__init__(config, optimizer, schedule, label_smoothing, **options)  # type: ignore[arg-type]

    def _complete_config(self) -> None:
        super()._complete_config()
        # One tokenizer serves both sides.
        given, found = self.config.encoder.vocab_size, self.trainer.datamodule.vocab_size  # type: ignore[attr-defined]
        if given is not None and given < found:
            raise InputError(f"the encoder's vocab_size is {given}, but the data need {found}")
