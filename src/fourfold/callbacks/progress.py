"""What one sees while it runs: a bar on a terminal, a line every few seconds in a log file.

Lightning's bar prints nothing into a file until the last epoch.
"""

import sys
import time
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar

from fourfold.callbacks.meter import Meter
from fourfold.callbacks.screen import Lines, Screen, Terminal

GLANCE = 0.5  # seconds between two updates of a bar: reading the loss waits for the device


class Progress(ProgressBar):
    """Step, epoch, loss, learning rate, tokens or images a second, time left, validation metrics.

    Args:
        seconds: Between two lines where the output is not a terminal.
    """

    def __init__(self, seconds: float = 10.0) -> None:
        super().__init__()
        terminal = sys.stdout.isatty()
        self.screen: Screen = Terminal() if terminal else Lines()
        self.seconds = GLANCE if terminal else seconds
        self.meter = Meter()
        self._began = self._shown = time.monotonic()
        self._first = self._total = 0
        self._started = False
        self._enabled = True

    def disable(self) -> None:
        """Called by Lightning on all ranks but the first."""
        self._enabled = False

    def enable(self) -> None:
        """Part of Lightning's interface."""
        self._enabled = True

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Say something between the updates."""
        if self._enabled:
            self.screen.say(" ".join(str(arg) for arg in args))

    # Training.

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say what begins, and start the clock."""
        self._started = True
        self._first, self._total = trainer.global_step, pl_module.total_steps()  # type: ignore
        weights = sum(p.numel() for p in pl_module.parameters())
        where = f"{trainer.strategy.root_device}, {trainer.precision}"
        ranks = f" x {trainer.world_size}" if trainer.world_size > 1 else ""
        self.print(f"{type(pl_module).__name__}: {weights:,} parameters on {where}{ranks}")
        if trainer.world_size * trainer.accumulate_grad_batches > 1:
            self.print(f"a step takes {step_size(trainer)}, at the learning rate of the config")
        if not trainer.enable_validation or "val" not in trainer.datamodule.splits:  # type: ignore
            self.print("nothing is validated: there will be no best.ckpt, only last.ckpt")
        if self._first:
            self.print(f"resumed after step {self._first:,}")
        self.meter, self._began = Meter(), time.monotonic()
        self._shown = self._began
        if self._enabled:
            self.screen.start("train", self._total, self._first)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the batch; if it is time, show."""
        self.meter.add(pl_module.size(batch) * trainer.world_size)  # type: ignore[operator]
        soon = trainer.fit_loop.total_batch_idx == 0 or trainer.global_step == self._total
        if soon or time.monotonic() - self._shown >= self.seconds:
            self._show(trainer, pl_module)

    def _show(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._shown = time.monotonic()
        if not self._enabled:
            return
        step = trainer.global_step
        facts = {"epoch": f"{trainer.current_epoch + 1}"}
        loss = trainer.callback_metrics.get("train/loss")
        if loss is not None:
            facts["loss"] = f"{float(loss):.4f}"
        facts["lr"] = f"{trainer.optimizers[0].param_groups[0]['lr']:.2e}"
        facts[f"{pl_module.unit}/s"] = f"{self.meter.read():,.0f}"
        facts["left"] = self._left(step)
        self.screen.update(step, facts)

    def _left(self, step: int) -> str:
        done = step - self._first
        if self._total is None:
            return "?"
        if not done or self._total <= step:
            return duration(0.0) if self._total <= step else "?"
        return duration((time.monotonic() - self._began) / done * (self._total - step))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say how long it took."""
        if self._enabled:
            self.screen.stop()
        took = duration(time.monotonic() - self._began)
        self.print(f"trained to step {trainer.global_step:,} in {took}")

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say why nothing was done, of a run that was complete."""
        if not self._started:
            how = "give a greater --trainer.max_steps or max_epochs"
            if trainer.should_stop:  # an early end that it had come to
                how = "leave out the callback that stopped it, or give that more time"
            step = f"{trainer.global_step:,}"
            self.print(f"nothing to do: the run is complete at step {step}; to go on, {how}")

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Give the terminal back."""
        self.screen.stop()

    # Evaluation.

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop the clock."""
        self.meter.pause()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the metrics, unless this was only the check before training."""
        self.meter.go_on()
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        metrics = trainer.callback_metrics.items()
        shown = [f"{name} {float(x):.4f}" for name, x in metrics if name.startswith("val/")]
        self.print(f"step {trainer.global_step:,}  {'  '.join(shown)}")

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show how far a test is, by batches."""
        if self._enabled:
            self.screen.start("test", int(sum(trainer.num_test_batches)), 0)

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any,
        batch_idx: int, dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        """If it is time, show."""
        if self._enabled and time.monotonic() - self._shown >= self.seconds:
            self._shown = time.monotonic()
            self.screen.update(batch_idx + 1, {})

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make room for the table."""
        self.screen.stop()


def step_size(trainer: Trainer) -> str:
    """What an optimizer step takes at most, as 8 devices x 2 micro-batches x 25,000 tokens."""
    parts = []
    if trainer.world_size > 1:
        parts.append(f"{trainer.world_size} devices")
    if trainer.accumulate_grad_batches > 1:
        parts.append(f"{trainer.accumulate_grad_batches} micro-batches")
    plan = trainer.datamodule.split("train").plan  # type: ignore[attr-defined]
    tokens = getattr(plan, "max_tokens", None)  # of rows in a window there is only their number
    batch = f"{plan.max_rows:,} rows" if tokens is None else f"{tokens:,} tokens"
    return " x ".join([*parts, batch])


def duration(seconds: float) -> str:
    """Seconds as one reads them: 42 s, 5 min 10 s, 3 h 20 min, 2 d 4 h."""
    whole = round(seconds)
    for unit, size, below, lower in (("d", 86400, "h", 3600), ("h", 3600, "min", 60)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // lower} {below}"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"
