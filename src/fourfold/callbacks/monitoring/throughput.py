"""StepMetrics: callback that logs the learning rate, and tokens or images per second."""

import time
from typing import Any, NamedTuple

from lightning import Callback, LightningModule, Trainer

from fourfold.lightning_internals import is_accumulating, is_logged


class Reading(NamedTuple):
    """Tokens or images on all ranks, and seconds without validations, since the start of training.

    Example:
        >>> Reading(130, 3.0).rate_since(Reading(100, 2.0))  # 30 tokens in a second
        30.0
    """

    units: int
    seconds: float

    def rate_since(self, earlier: "Reading") -> float:
        """Return tokens or images per second since an earlier reading; 0 if no time has passed."""
        seconds = self.seconds - earlier.seconds
        return (self.units - earlier.units) / seconds if seconds > 0 else 0.0


class StepMetrics(Callback):
    """Callback that logs `train/lr` and `train/tokens_per_second` or `train/images_per_second`.

    Both metrics are logged every `log_every_n_steps` optimizer steps. The throughput is that of all
    ranks: the tokens or images of this rank are multiplied by the number of ranks. The time of
    validations is not counted. The time is read from the clock of the CPU without waiting for the
    GPU, since the work in the GPU's queue is small compared with the work between two readings.

    The LightningModule must have an attribute `unit` ("tokens" or "images") and a method
    `n_units(batch)` that counts them, as every task has.
    """

    _started_at = 0.0  # validation in the sanity check comes before the start of training

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._units = 0
        self._started_at = time.monotonic()
        self._logged = Reading(0, 0.0)

    def read(self) -> Reading:
        return Reading(self._units, time.monotonic() - self._started_at)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stopped_at = time.monotonic()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._started_at += time.monotonic() - self._stopped_at

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if is_logged(trainer):  # `log` copies the number to the device
            lr = trainer.optimizers[0].param_groups[0]["lr"]
            pl_module.log("train/lr", lr, prog_bar=True)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._units += pl_module.n_units(batch) * trainer.world_size  # type: ignore[operator]
        if is_logged(trainer) and not is_accumulating(trainer):
            reading = self.read()
            pl_module.log(f"train/{pl_module.unit}_per_second", reading.rate_since(self._logged))
            self._logged = reading
