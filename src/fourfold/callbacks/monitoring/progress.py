"""Progress of training and testing: a bar on a terminal, or a line every few seconds in a log file.

Lightning's progress bars write nothing to a file before the end of an epoch.
"""

import sys
import time
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich import progress

from fourfold.callbacks.checkpointing.exact_resume import resumable_data
from fourfold.callbacks.monitoring.throughput import ThroughputMeter

BAR_SECONDS = 0.5  # seconds between two updates of a bar; reading the loss waits for the device


class ProgressOutput:
    """Output of progress: a bar of `rich` on a terminal, otherwise one line per update.

    Each line is flushed, so that the log file of a batch job can be watched.
    """

    def __init__(self) -> None:
        self.enabled = True
        self._bar: progress.Progress | None = None
        self._label = ""
        self._total = ""

    def start(self, name: str, total: int | None, done: int) -> None:
        """Start to report `total` steps (None if unknown), `done` of which are complete."""
        self.stop()
        self._label = "step" if name == "train" else f"{name} batch"
        self._total = "" if total is None else f"/{total:,}"
        if self.enabled and sys.stdout.isatty():
            self._bar = progress.Progress(
                name,
                progress.BarColumn(),
                "{task.completed:,}" + self._total,
                "{task.fields[values]}",
                transient=True,
                refresh_per_second=4,
            )
            self._bar.add_task(name, total=total, completed=done, values="")
            self._bar.start()

    def update(self, step: int, values: dict[str, str]) -> None:
        """Report the current step and values by name."""
        text = "  ".join(f"{name} {value}" for name, value in values.items())
        if self._bar is None:
            self.print(f"{self._label} {step:,}{self._total}  {text}".rstrip())
        else:
            self._bar.update(self._bar.task_ids[0], completed=step, values=text)

    def print(self, text: str) -> None:
        """Print a line, above the bar if there is a bar."""
        if self.enabled:
            print(text, flush=True)

    def stop(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class Progress(ProgressBar):
    """Callback that reports the progress of training and testing.

    The report holds step, epoch, loss, learning rate, throughput, time left and validation metrics.

    Args:
        seconds: Seconds between two lines if the output is not a terminal.
        meter: Meter that counts the tokens or images of training; `StepMetrics` updates the meter.
    """

    def __init__(self, seconds: float, meter: ThroughputMeter) -> None:
        super().__init__()
        self.output = ProgressOutput()
        self.seconds = BAR_SECONDS if sys.stdout.isatty() else seconds
        self.meter = meter
        self._updated_at = time.monotonic()
        self._trained = False

    def disable(self) -> None:
        """Disable the output; Lightning calls this method on all ranks but the first."""
        self.output.enabled = False

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print values separated by spaces; Lightning calls this method for `self.print`."""
        self.output.print(" ".join(str(arg) for arg in args))

    # Training.

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the model, the device and the size of a step, and start the clock."""
        self._trained = True
        self._first_step = trainer.global_step
        self._total: int | None = pl_module.total_steps()  # type: ignore[operator]
        n_parameters = sum(p.numel() for p in pl_module.parameters())
        device = f"{trainer.strategy.root_device}, {trainer.precision}"
        ranks = f" x {trainer.world_size}" if trainer.world_size > 1 else ""
        self.print(f"{type(pl_module).__name__}: {n_parameters:,} parameters on {device}{ranks}")
        if trainer.world_size * trainer.accumulate_grad_batches > 1:
            size = describe_step_size(trainer)
            self.print(f"each optimizer step takes {size}; the learning rate is not scaled")
        data = resumable_data(trainer)
        if not trainer.enable_validation or (data is not None and "val" not in data.splits):
            self.print("there is no validation: best.ckpt will not be written, only last.ckpt")
        if self._first_step:
            self.print(f"resumed after step {self._first_step:,}")
        self._started_at = self._updated_at = time.monotonic()
        self._reading = self.meter.read()
        self.output.start("train", self._total, self._first_step)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Update the output every `seconds`, and after the first and the last batch."""
        is_end = trainer.fit_loop.total_batch_idx == 0 or trainer.global_step == self._total
        if is_end or time.monotonic() - self._updated_at >= self.seconds:
            self._update(trainer, pl_module)

    def _update(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._updated_at = time.monotonic()
        if not self.output.enabled:
            return
        values = {"epoch": f"{trainer.current_epoch + 1}"}
        loss = trainer.callback_metrics.get("train/loss")
        if loss is not None:
            values["loss"] = f"{float(loss):.4f}"
        values["lr"] = f"{trainer.optimizers[0].param_groups[0]['lr']:.2e}"
        reading = self.meter.read()
        values[f"{pl_module.unit}/s"] = f"{reading.rate_since(self._reading):,.0f}"
        self._reading = reading
        values["left"] = self._time_left(trainer.global_step)
        self.output.update(trainer.global_step, values)

    def _time_left(self, step: int) -> str:
        done = step - self._first_step
        if self._total is None or not done:
            return "?"
        return format_duration((time.monotonic() - self._started_at) / done * (self._total - step))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove the bar, and print the duration of the training."""
        self.output.stop()
        seconds = format_duration(time.monotonic() - self._started_at)
        self.print(f"trained to step {trainer.global_step:,} in {seconds}")

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print advice if the run was complete already, so that no step was trained."""
        if self._trained:
            return
        advice = "give a greater --trainer.max_steps or --trainer.max_epochs"
        if trainer.should_stop:  # a callback such as EarlyStopping ended the run
            advice = "remove the callback that stopped it, or increase its patience"
        step = f"{trainer.global_step:,}"
        self.print(f"nothing to do: the run is complete at step {step}; to continue it, {advice}")

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Remove the bar from the terminal."""
        self.output.stop()

    # Evaluation.

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the validation metrics, except in the sanity check before training."""
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        metrics = trainer.callback_metrics.items()
        values = [f"{name} {float(x):.4f}" for name, x in metrics if name.startswith("val/")]
        self.print(f"step {trainer.global_step:,}  {'  '.join(values)}")

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start to report the batches of a test."""
        self.output.start("test", int(sum(trainer.num_test_batches)), 0)

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Update the output every `seconds`."""
        if time.monotonic() - self._updated_at >= self.seconds:
            self._updated_at = time.monotonic()
            self.output.update(batch_idx + 1, {})

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remove the bar, since a table of metrics follows."""
        self.output.stop()


def describe_step_size(trainer: Trainer) -> str:
    """Return the size of an optimizer step, such as "8 devices x 2 micro-batches x 512 rows"."""
    counts = {"devices": trainer.world_size, "micro-batches": trainer.accumulate_grad_batches}
    factors = [f"{count} {name}" for name, count in counts.items() if count > 1]
    data = resumable_data(trainer)
    order = None if data is None else data.split("train").order
    tokens = getattr(order, "max_tokens", None)
    rows = getattr(order, "max_rows", None)
    if tokens is not None:
        factors.append(f"{tokens:,} tokens")
    else:
        factors.append("1 batch" if rows is None else f"{rows:,} rows")
    return " x ".join(factors)


def format_duration(seconds: float) -> str:
    """Format a number of seconds as 42 s, 5 min 10 s, 3 h 20 min or 2 d 4 h."""
    rounded = round(seconds)
    for unit, size, lower, lower_size in (("d", 86400, "h", 3600), ("h", 3600, "min", 60)):
        if rounded >= size:
            return f"{rounded // size} {unit} {rounded % size // lower_size} {lower}"
    return f"{rounded // 60} min {rounded % 60} s" if rounded >= 60 else f"{rounded} s"
