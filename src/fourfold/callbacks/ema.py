"""An exponential moving average of the weights, through Lightning's callback."""

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging


class ExponentialAverage(EMAWeightAveraging):
    """Validates and saves the average; `state_dict` in a checkpoint is the average.

    It starts at the first step: with a delayed start Lightning validates untrained weights until
    then, and puts them in the place of the trained ones if training ends before.

    Args:
        decay: Weight of the old average in the new one, each optimizer step.
    """

    def __init__(self, decay: float) -> None:
        # Constants among the buffers would be worn down by rounding; running statistics are means
        # already.
        super().__init__(decay=decay, use_buffers=False)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Keep the average where the model will be, which is not there yet."""
        self._device = self._device or trainer.strategy.root_device
        super().setup(trainer, pl_module, stage)
