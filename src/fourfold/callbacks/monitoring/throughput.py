"""StepMetrics: callback that logs the learning rate, and how fast and how well devices are used."""

import time
from typing import Any, NamedTuple

import torch
from lightning import Callback, LightningModule, Trainer

from fourfold.callbacks.monitoring.utilization import flops_share
from fourfold.lightning_internals import is_accumulating, is_logged, time_fetches


class Reading(NamedTuple):
    """Tokens or images on all ranks, and seconds without validations, since the start of training.

    `waiting` are the seconds in which this rank waited for the data loader.

    Example:
        >>> Reading(130, 3.0).rate_since(Reading(100, 2.0))  # 30 tokens in a second
        30.0
    """

    units: int
    seconds: float
    waiting: float = 0.0

    def rate_since(self, earlier: "Reading") -> float:
        """Return tokens or images per second since an earlier reading; 0 if no time has passed."""
        seconds = self.seconds - earlier.seconds
        return (self.units - earlier.units) / seconds if seconds > 0 else 0.0


class StepMetrics(Callback):
    """Callback that logs `train/lr`, the throughput, and how well the devices are used.

    The metrics are logged every `log_every_n_steps` optimizer steps:

    - `train/tokens_per_second` or `train/images_per_second`, the throughput;
    - `train/data_wait`, the share of the time in which the first rank waits for the data loader;
    - `train/peak_memory_gib` on a GPU, the peak of the memory of tensors on the first rank;
    - `train/mfu` on a GPU with a known peak, see `utilization`. The FLOPs of a token are those of
      the first batch of the training.

    The throughput is that of all ranks: the tokens or images of this rank are multiplied by the
    number of ranks. The time of validations is not counted. The time is read from the clock of the
    CPU without waiting for the GPU, since the work in the GPU's queue is small compared with the
    work between two readings.

    The LightningModule must have an attribute `unit` ("tokens" or "images") and a method
    `n_units(batch)` that counts them, as every task has.
    """

    _started_at = 0.0  # validation in the sanity check comes before the start of training

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._units = 0
        self._waiting = 0.0
        self._flops_share: float | None = None  # of one unit per second
        self._started_at = time.monotonic()
        self._logged = Reading(0, 0.0)
        time_fetches(trainer, self._start_fetch, self._end_fetch)

    def read(self) -> Reading:
        return Reading(self._units, time.monotonic() - self._started_at, self._waiting)

    def usage(self, trainer: Trainer, earlier: Reading, reading: Reading) -> dict[str, float]:
        """Return the known metrics of the use of the devices between two readings, by name."""
        seconds = reading.seconds - earlier.seconds
        usage = {"data_wait": (reading.waiting - earlier.waiting) / seconds if seconds > 0 else 0.0}
        device = trainer.strategy.root_device
        if device.type == "cuda":
            usage["peak_memory_gib"] = torch.cuda.max_memory_allocated(device) / 2**30
        if self._flops_share:
            usage["mfu"] = self._flops_share * reading.rate_since(earlier)
        return usage

    def _start_fetch(self) -> None:
        self._fetches_since = time.monotonic()

    def _end_fetch(self) -> None:
        self._waiting += time.monotonic() - self._fetches_since

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
        if self._flops_share is None:
            self._flops_share = flops_share(trainer, pl_module, batch)
        if is_logged(trainer) and not is_accumulating(trainer):
            reading = self.read()
            usage = self.usage(trainer, self._logged, reading)
            usage[f"{pl_module.unit}_per_second"] = reading.rate_since(self._logged)
            pl_module.log_dict({f"train/{name}": value for name, value in usage.items()})
            self._logged = reading
