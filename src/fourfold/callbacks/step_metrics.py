"""Logs beside the loss: the learning rate, and how fast training goes."""

from typing import Any

from lightning import Callback, LightningModule, Trainer

from fourfold.callbacks.meter import Meter


class StepMetrics(Callback):
    """Logs `lr` and `train/tokens_per_second` (or images) with the Trainer's `log_every_n_steps`.

    Needs a module with `unit` and `size(batch)`, as every task is.
    """

    def __init__(self) -> None:
        self.meter = Meter()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock."""
        self.meter = Meter()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop the clock."""
        self.meter.pause()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start it again."""
        self.meter.go_on()

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Log the rate that this step is about to be taken with."""
        if is_logged(trainer):
            # Only where it will be written: a number logged is a copy to the device.
            pl_module.log("lr", trainer.optimizers[0].param_groups[0]["lr"])

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the batch, and log how fast all micro-batches since the last time were."""
        self.meter.add(pl_module.size(batch) * trainer.world_size)  # type: ignore[operator]
        if is_logged(trainer) and not trainer.fit_loop.epoch_loop._should_accumulate():
            pl_module.log(f"train/{pl_module.unit}_per_second", self.meter.read())


def is_logged(trainer: Trainer) -> bool:
    """Whether the optimizer step at hand is one that loggers will hear of."""
    every: int = trainer.log_every_n_steps  # type: ignore[attr-defined]
    done: int = trainer.fit_loop.epoch_loop._batches_that_stepped
    return bool(trainer.loggers) and every > 0 and (done + 1) % every == 0
