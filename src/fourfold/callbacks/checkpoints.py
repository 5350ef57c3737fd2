"""When a checkpoint is saved, and which are kept: last.ckpt to go on from, best.ckpt to use.

previous.ckpt is the last.ckpt of before, for the day on which a disk spoils that.

Lightning's ModelCheckpoint saves in the middle of an accumulation window (the gradient so far is
lost), ties last.ckpt to the monitored metric, and starts new names when a run is resumed.
"""

import math
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason

from fourfold.callbacks.metrics_csv import write_row
from fourfold.core.errors import InputError
from fourfold.files import whole
from fourfold.metrics import less_is_better

NOT_STOPPED = EarlyStoppingReason.NOT_STOPPED
MONITORS = ("val/bleu", "val/top1", "val/loss")  # the first that is logged decides


class Checkpoints(Checkpoint):
    """Saves last.ckpt by steps and epochs, and the best after a validation.

    Args:
        folder: Where they go.
        monitor: Metric that decides which is best; None takes the first there is of `MONITORS`.
        mode: min or max; None goes by the metric's name.
        keep_best: How many of the best to keep, as step=N.ckpt; best.ckpt is the first of them.
        every_n_steps: Save last.ckpt every so many optimizer steps; None only by epochs.
        every_n_epochs: Save last.ckpt every so many epochs; 0 never.
    """

    def __init__(
        self,
        folder: Path,
        *,
        monitor: str | None = None,
        mode: str | None = None,
        keep_best: int = 1,
        every_n_steps: int | None = None,
        every_n_epochs: int = 1,
    ) -> None:
        self.folder, self.monitor, self.mode, self.keep_best = folder, monitor, mode, keep_best
        self.every_n_steps, self.every_n_epochs = every_n_steps, every_n_epochs
        self.saved_step = 0
        self.waits = False  # last.ckpt is due, once the validation at hand is over
        self.stops = False  # somebody asked for it in the middle of a window
        self.in_window = False  # what is being saved lacks the gradient of its first micro-batches
        self.stopped = False  # last.ckpt is where a callback ended the run
        self.scores: dict[str, float] = {}  # file name: score, of those kept

    @property
    def last(self) -> Path:
        """Where training goes on from."""
        return self.folder / "last.ckpt"

    @property
    def best(self) -> Path:
        """The best so far."""
        return self.folder / "best.ckpt"

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say so, if the best are chosen on what they will be tested on.

        What EarlyStopping had ended stays so: another start of the command is to change nothing.
        """
        if self.stopped:
            callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
            early = [c for c in callbacks if isinstance(c, EarlyStopping)]
            trainer.should_stop = any(c.stopping_reason != NOT_STOPPED for c in early)
        self.stopped = False  # of what is saved from now on
        data = getattr(trainer, "datamodule", None)
        chooses = self.keep_best and trainer.enable_validation and trainer.is_global_zero
        if chooses and getattr(data, "tests_on_val", False):
            print(
                "val and test are the same data, so that best.ckpt is chosen on what it is tested"
                " on: --checkpoint.keep_best 0 has the last weights tested instead",
                file=sys.stderr,
                flush=True,
            )

    # last.ckpt

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save if this batch completed an optimizer step whose number is due."""
        self._close_window(trainer)
        step = trainer.global_step
        if step == self.saved_step:
            return
        due = self.every_n_steps is not None and step % self.every_n_steps == 0
        # The end of a run inside an epoch: only here does a checkpoint know its place in the data.
        ends = step == trainer.max_steps or stops_now(trainer)
        accumulating = trainer.fit_loop.epoch_loop._should_accumulate()
        if (due or ends) and not accumulating and not self._ends_epoch(trainer):
            # A checkpoint from before a validation would never make up for it when resumed.
            if validates_now(trainer):
                self.waits = True
            else:
                write_row(trainer)
                self.save_last(trainer)

    def _close_window(self, trainer: Trainer) -> None:
        """Have a stop wait for the optimizer step that is being accumulated.

        Its gradient so far would be lost, and its micro-batches not be seen again.
        """
        accumulating = trainer.fit_loop.epoch_loop._should_accumulate()
        if trainer.should_stop if accumulating else self.stops:
            trainer.should_stop, self.stops = not accumulating, accumulating

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save if the epoch is complete and due, or the last."""
        if self._ends_epoch(trainer):
            self.save_last(trainer)

    def _ends_epoch(self, trainer: Trainer) -> bool:
        """Whether last.ckpt is saved when the epoch ends, which the batch at hand completes.

        Then not after the batch or its validation, too: Lightning counts on in between, and a run
        that is killed there would be over with the lower count.
        """
        complete = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
        due = bool(self.every_n_epochs) and (trainer.current_epoch + 1) % self.every_n_epochs == 0
        # The last one here, since at the end of training a moving average is in the model's place.
        return complete and (due or is_over(trainer) or stops_now(trainer))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """However training ended: what it reached is not lost."""
        if trainer.global_step != self.saved_step:
            self.save_last(trainer)

    def save_last(self, trainer: Trainer) -> None:
        """Write last.ckpt now; the one before is kept as previous.ckpt."""
        self.saved_step, self.waits = trainer.global_step, False
        if trainer.is_global_zero and self.last.is_file():
            _link(self.last, self.folder / "previous.ckpt")
        self.stopped = stops_now(trainer)
        trainer.save_checkpoint(self.last)
        self.stopped = False

    # best.ckpt

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save if this is among the best, and last.ckpt if it waited for this."""
        if trainer.state.fn != "fit":
            return
        if self.keep_best:
            self._keep_best(trainer)
        if trainer.sanity_checking:
            return
        self._close_window(trainer)
        # One that stops here must be saved now: afterwards Lightning has counted the epoch as done,
        # and a moving average is in the model's place.
        if (self.waits or stops_now(trainer)) and not self._ends_epoch(trainer):
            self.save_last(trainer)

    def _keep_best(self, trainer: Trainer) -> None:
        """Save if this is among the best, and drop what no longer is."""
        name = self._monitored(trainer)  # refuses a wrong name in the check before training, too
        if name is None or trainer.sanity_checking:
            return
        score = float(trainer.callback_metrics[name])
        file = f"step={trainer.global_step:08d}.ckpt"
        if math.isnan(score) or not self._is_among_best(name, file, score):
            return
        self.scores[file] = score
        ranking = self._ranking(name)
        for dropped in ranking[self.keep_best :]:
            del self.scores[dropped]
        self.in_window = trainer.fit_loop.epoch_loop._should_accumulate()
        trainer.save_checkpoint(self.folder / file)
        self.in_window = False
        if trainer.is_global_zero:
            for dropped in ranking[self.keep_best :]:
                (self.folder / dropped).unlink(missing_ok=True)
            if ranking[0] == file:
                _link(self.folder / file, self.best)

    def _monitored(self, trainer: Trainer) -> str | None:
        names = MONITORS if self.monitor is None else (self.monitor,)
        found = next((name for name in names if name in trainer.callback_metrics), None)
        if found is None and self.monitor is not None:
            there = sorted(name for name in trainer.callback_metrics if name.startswith("val/"))
            raise InputError(
                f"checkpoint.monitor is {self.monitor}, but validation gives {', '.join(there)}"
            )
        return found

    def _ranking(self, name: str) -> list[str]:
        mode = self.mode or ("min" if less_is_better(name) else "max")
        sign = -1 if mode == "min" else 1
        # Of equal scores the later step ranks first: BLEU stays at 0 for a while.
        return sorted(self.scores, key=lambda f: (sign * self.scores[f], f), reverse=True)

    def _is_among_best(self, name: str, file: str, score: float) -> bool:
        before = dict(self.scores)
        self.scores[file] = score
        try:
            return file in self._ranking(name)[: self.keep_best]
        finally:
            self.scores = before

    # What a resumed run must know.

    def state_dict(self) -> dict[str, Any]:
        """The step of last.ckpt, the scores, and whether training could or should go on here."""
        return {
            "saved_step": self.saved_step,
            "scores": dict(self.scores),
            "in_window": self.in_window,
            "stopped": self.stopped,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take them up again; files that somebody deleted do not count."""
        self.saved_step = state_dict["saved_step"]
        self.stopped = state_dict.get("stopped", False)
        scores = state_dict["scores"]
        self.scores = {f: s for f, s in scores.items() if (self.folder / f).is_file()}


def validates_now(trainer: Trainer) -> bool:
    """Whether a validation follows the training batch that has just ended."""
    loop, fetcher = trainer.fit_loop.epoch_loop, trainer.fit_loop._data_fetcher
    assert fetcher is not None  # training is under way
    if "val" not in trainer.datamodule.splits:  # type: ignore[attr-defined]
        return False  # Lightning would begin one, and find nothing to do
    return not loop._skip_next_val and loop._should_check_val_fx(fetcher)


def stops_now(trainer: Trainer) -> bool:
    """Whether a callback ends the run here: not before its least steps and epochs."""
    return trainer.should_stop and trainer.fit_loop._can_stop_early


def is_over(trainer: Trainer) -> bool:
    """Whether the training batch that has just ended was the last of the run."""
    last_batch = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
    last_epoch = trainer.current_epoch + 1 == trainer.max_epochs
    return trainer.global_step == trainer.max_steps or (last_batch and last_epoch)


def _link(source: Path, target: Path) -> None:
    """Give a file a second name, at once; copy it where the file system cannot."""
    with whole(target) as part:
        part.unlink(missing_ok=True)  # of a process that was killed
        try:
            os.link(source, part)
        except OSError:
            shutil.copyfile(source, part)
