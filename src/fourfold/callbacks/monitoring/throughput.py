"""StepMetrics: callback that logs the learning rate, and tokens or images per second."""

import time
from typing import Any, NamedTuple

from lightning import Callback, LightningModule, Trainer

from fourfold.lightning_internals import is_accumulating, is_logged


class Reading(NamedTuple):
    """Number of tokens or images that were trained on, and the time that this took.

    Args:
        units: Number of tokens or images since the start of training, on all ranks.
        seconds: Seconds since the start of training, without the time of validations.

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

    Example:
        >>> from fourfold.data import RecallData
        >>> from fourfold.models import CausalLMConfig
        >>> from fourfold.tasks import CausalLanguageModeling
        >>> config = CausalLMConfig(d_model=16, n_layers=1, n_heads=2, vocab_size=None)
        >>> task, data = CausalLanguageModeling(config), RecallData(distance=4)
        >>> quiet = {"enable_progress_bar": False, "enable_model_summary": False}
        >>> import tempfile
        >>> from pathlib import Path
        >>> from fourfold.loggers.metrics_csv import MetricsCSVLogger
        >>> quiet |= {"enable_checkpointing": False, "limit_val_batches": 0, "log_every_n_steps": 1}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     logger = MetricsCSVLogger(Path(folder))
        ...     trainer = Trainer(max_steps=1, logger=logger, callbacks=[StepMetrics()], **quiet)
        ...     trainer.fit(task, data)
        ...     logger.file.read_text().splitlines()[0]
        'step,train/lr,train/loss,train/grad_norm,train/tokens_per_second,epoch'
    """

    _started_at = 0.0  # validation in the sanity check comes before the start of training

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Set the number of tokens or images to 0, and start to measure the time."""
        self._units = 0
        self._started_at = time.monotonic()
        self._logged = Reading(0, 0.0)

    def read(self) -> Reading:
        """Return the number of tokens or images, and the seconds, since the start of training."""
        return Reading(self._units, time.monotonic() - self._started_at)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Store the time at which the validation starts, to exclude its duration later."""
        self._stopped_at = time.monotonic()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Exclude the duration of the validation from the measured time of training."""
        self._started_at += time.monotonic() - self._stopped_at

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Log the learning rate every `log_every_n_steps` optimizer steps."""
        if is_logged(trainer):  # `log` copies the number to the device
            lr = trainer.optimizers[0].param_groups[0]["lr"]
            pl_module.log("train/lr", lr, prog_bar=True)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the tokens or images, and log the throughput since the previous logged step."""
        self._units += pl_module.n_units(batch) * trainer.world_size  # type: ignore[operator]
        if is_logged(trainer) and not is_accumulating(trainer):
            reading = self.read()
            pl_module.log(f"train/{pl_module.unit}_per_second", reading.rate_since(self._logged))
            self._logged = reading
