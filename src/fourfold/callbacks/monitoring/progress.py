"""Progress: callback that prints lines on training and testing, for log files and terminals.

Lightning's progress bars write nothing to a file before the end of an epoch.
"""

import sys
import time
from datetime import timedelta
from typing import Any

from lightning import Callback, LightningModule, Trainer

from fourfold.callbacks.checkpointing.exact_resume import resumable_data
from fourfold.callbacks.monitoring.throughput import StepMetrics

# Metrics of `StepMetrics.usage` in a line of progress.
USAGE = {"mfu": "MFU {:.1%}", "peak_memory_gib": "peak {:.1f} GiB", "data_wait": "data wait {:.0%}"}


class Progress(Callback):
    """Callback that prints the start and end of training, lines of progress and validation metrics.

    A line of progress has the step, epoch, loss, learning rate, throughput, `USAGE` and remaining
    time. On a terminal, no lines of progress are printed, since Lightning shows a progress bar.
    Only the first rank prints, and the output is flushed after each line.

    Args:
        seconds: Seconds between two lines of progress.
        step_metrics: Callback that measures the throughput of training.
    """

    def __init__(self, seconds: float, step_metrics: StepMetrics) -> None:
        self.seconds = seconds
        self.step_metrics = step_metrics
        self._updated_at = time.monotonic()
        self._trained = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._prints = trainer.is_global_zero
        self._prints_progress = self._prints and not sys.stdout.isatty()

    def print(self, *parts: str) -> None:
        if self._prints:
            print("  ".join(parts), flush=True)

    def _is_due(self, always: bool = False) -> bool:
        """Return True if a line of progress has to be printed now, and keep its time."""
        now = time.monotonic()
        is_due = self._prints_progress and (always or now - self._updated_at >= self.seconds)
        if is_due:
            self._updated_at = now
        return is_due

    # Training.

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the model, device and size of an optimizer step, and start to measure the time."""
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
        if data is not None:
            sizes = (f"{name} {len(split):,}" for name, split in data.splits.items())
            self.print(f"examples of the splits: {', '.join(sizes)}")
        if not trainer.enable_validation or (data is not None and "val" not in data.splits):
            self.print("there is no validation: best.ckpt will not be written, only last.ckpt")
        if self._first_step:
            self.print(f"resumed after step {self._first_step:,}")
        self._started_at = self._updated_at = time.monotonic()
        self._reading = self.step_metrics.read()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Keep the learning rate of the step, which the scheduler changes before the step ends."""
        self._lr: float = trainer.optimizers[0].param_groups[0]["lr"]

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Print a line of progress every `seconds` seconds, and after the first and last batch."""
        is_end = trainer.fit_loop.total_batch_idx == 0 or trainer.global_step == self._total
        if not self._is_due(always=is_end):
            return
        total = "" if self._total is None else f"/{self._total:,}"
        parts = [f"step {trainer.global_step:,}{total}", f"epoch {trainer.current_epoch + 1}"]
        loss = trainer.callback_metrics.get("train/loss")
        if loss is not None:
            parts.append(f"loss {float(loss):.4f}")
        parts.append(f"lr {self._lr:.2e}")
        earlier, self._reading = self._reading, self.step_metrics.read()
        parts.append(f"{pl_module.unit}/s {self._reading.rate_since(earlier):,.0f}")
        usage = self.step_metrics.usage(trainer, earlier, self._reading)
        parts += [form.format(usage[name]) for name, form in USAGE.items() if name in usage]
        self.print(*parts, f"left {self._time_left(trainer.global_step)}")

    def _time_left(self, step: int) -> str:
        done = step - self._first_step
        if self._total is None or not done:
            return "?"
        seconds = (time.monotonic() - self._started_at) / done * (self._total - step)
        return str(timedelta(seconds=round(seconds)))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        duration = timedelta(seconds=round(time.monotonic() - self._started_at))
        self.print(f"trained to step {trainer.global_step:,} in {duration}")

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """If the run was already complete and no step was trained, print how to continue it."""
        if self._trained:
            return
        advice = "give a greater --trainer.max_steps or --trainer.max_epochs"
        if trainer.should_stop:  # a callback such as EarlyStopping ended the run
            advice = "remove the callback that stopped it, or increase its patience"
        step = f"{trainer.global_step:,}"
        self.print(f"nothing to do: the run is complete at step {step}; to continue it, {advice}")

    # Evaluation.

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        metrics = trainer.callback_metrics.items()
        values = [f"{name} {float(x):.4f}" for name, x in metrics if name.startswith("val/")]
        self.print(f"step {trainer.global_step:,}", *values)

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        data = resumable_data(trainer)
        if data is not None:
            self.print(f"the test split has {len(data.split('test')):,} examples")

    def on_test_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        if self._is_due():
            _, _, batch_idx, *_ = args
            self.print(f"test batch {batch_idx + 1:,}/{int(sum(trainer.num_test_batches)):,}")


def describe_step_size(trainer: Trainer) -> str:
    """Describe the size of an optimizer step, as in "8 devices x 2 micro-batches x 512 rows".

    The last factor is the number of tokens of a batch if the DataModule limits it, such as
    "4,096 tokens", and "1 batch" if no size is known.
    """
    counts = {"devices": trainer.world_size, "micro-batches": trainer.accumulate_grad_batches}
    factors = [f"{count} {name}" for name, count in counts.items() if count > 1]
    data = resumable_data(trainer)
    order = None if data is None else data.split("train").order
    sizes = {"tokens": getattr(order, "max_tokens", None), "rows": getattr(order, "max_rows", None)}
    known = (f"{size:,} {unit}" for unit, size in sizes.items() if size is not None)
    return " x ".join([*factors, next(known, "1 batch")])
