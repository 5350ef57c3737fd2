"""RunCheckpoints: callback that saves last.ckpt and best.ckpt; detection of a run's last batch.

The earlier last.ckpt is kept as previous.ckpt, in case last.ckpt is damaged on the disk.

Lightning's ModelCheckpoint saves in the middle of gradient accumulation, so that the accumulated
gradient is lost. ModelCheckpoint also writes last.ckpt only with a new best score, and chooses new
file names when a run is resumed.
"""

import math
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping
from lightning.pytorch.callbacks.early_stopping import EarlyStoppingReason
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.utilities.rank_zero import rank_zero_warn

from fourfold.atomic_files import atomic_path, remove, replace
from fourfold.callbacks.checkpointing.exact_resume import resumable_data
from fourfold.checkpoints.files import is_checkpoint
from fourfold.errors import DiskError, InputError
from fourfold.lightning_internals import (
    can_stop_early,
    dump_checkpoint,
    is_accumulating,
    will_validate,
)
from fourfold.loggers.metrics_csv import write_metrics_row
from fourfold.metrics import lower_is_better

MONITORS = ("val/bleu", "val/top1", "val/loss")  # without `monitor`, the first that is logged


@dataclass(frozen=True)
class CheckpointOptions:
    """Options of `RunCheckpoints`: intervals of saving, and the metric that ranks checkpoints.

    Args:
        monitor: Metric that ranks checkpoints; None takes the first of val/bleu, val/top1 and
            val/loss that is logged.
        mode: min if the lowest value of the metric is the best, max if the highest value is; None
            derives the mode from the name of the metric.
        save_top_k: Number of best checkpoints to keep; 0 keeps none.
        every_n_steps: Optimizer steps between saves of last.ckpt within an epoch; None saves only
            at the end of epochs.
        every_n_epochs: Epochs between saves of last.ckpt; 0 never saves at the end of an epoch.
        format: "file" writes one file from the first rank. "sharded" writes a directory of
            torch.distributed.checkpoint, in which each rank of fsdp2 saves its part of the weights
            and optimizer states; with other strategies, the first rank saves everything.
        async_save: Continue the training while a sharded checkpoint is written, from a copy of
            the weights and optimizer states on the CPU.
    """

    monitor: str | None = None
    mode: Literal["min", "max"] | None = None
    save_top_k: int = 1
    every_n_steps: int | None = 1000
    every_n_epochs: int = 1
    format: Literal["file", "sharded"] = "file"
    async_save: bool = False


class RunCheckpoints(Checkpoint):
    """Callback that saves last.ckpt regularly, and the best checkpoints after validations.

    The best checkpoints are files step=N.ckpt, where N is the number of optimizer steps. best.ckpt
    is a hard link to the file with the best score.

    Args:
        folder: Folder of the checkpoints.
        **options: Fields of `CheckpointOptions`.
    """

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.last = folder / "last.ckpt"
        self.best = folder / "best.ckpt"
        self.options = CheckpointOptions(**options)
        self.saved_step = 0  # step of the newest last.ckpt
        self.last_is_due = False  # last.ckpt will be saved in a later hook of this batch
        self.best_is_due = False  # the checkpoint of the last validation, likewise
        self.stop_after_step = False  # a callback asked to stop during gradient accumulation
        self.mid_accumulation = False  # the checkpoint being saved lacks an accumulated gradient
        self.stopped = False  # the checkpoint being saved is where a callback ended the run
        self.scores: dict[str, float] = {}  # file name to score
        self._save_in_progress: Any = None
        self._group: Any = None  # process group of sharded saves

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop at once if EarlyStopping has already ended the run that is resumed.

        Also warn if the validation split and the test split have the same data.
        """
        if self.stopped:
            callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
            reasons = [c.stopping_reason for c in callbacks if isinstance(c, EarlyStopping)]
            trainer.should_stop = any(r != EarlyStoppingReason.NOT_STOPPED for r in reasons)
        self.stopped = False
        selects = self.options.save_top_k and trainer.enable_validation
        if selects and getattr(getattr(trainer, "datamodule", None), "tests_on_val", False):
            rank_zero_warn(
                "val and test are the same data, so best.ckpt is selected on the test data;"
                " --checkpoint.save_top_k 0 tests the last weights instead"
            )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raise DiskError if the disk lacks space for last.ckpt, or at least for its weights."""
        needed = sum(parameter.nbytes for parameter in pl_module.parameters())
        files = self.last.iterdir() if self.last.is_dir() else [self.last]
        needed = sum(f.stat().st_size for f in files) if self.last.exists() else needed
        if not trainer.is_global_zero or not self.folder.parent.is_dir():
            return
        usage = shutil.disk_usage(self.folder.parent)
        if usage.total and usage.free < needed:  # some network file systems report no sizes
            message = f"{self.last} will need at least {needed:,} bytes, but {usage.free:,} bytes"
            raise DiskError(f"{message} are free on its disk")

    # last.ckpt

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Save last.ckpt every `every_n_steps` optimizer steps, and when the run ends.

        If a validation or the end of an epoch follows, a later hook saves last.ckpt instead.
        """
        self._delay_stop(trainer)
        step = trainer.global_step
        if step == self.saved_step or is_accumulating(trainer):
            return
        every_n_steps = self.options.every_n_steps
        is_due = every_n_steps is not None and step % every_n_steps == 0
        # If the run ends inside an epoch, later hooks do not know the position in the data.
        self.last_is_due = is_due or step == trainer.max_steps or stops_early(trainer)
        if self.last_is_due and is_resumable(trainer, "batch"):
            write_metrics_row(trainer)
            self.save_last(trainer)

    def _delay_stop(self, trainer: Trainer) -> None:
        """Delay a requested stop until the accumulated gradient is applied, which would be lost."""
        is_requested = trainer.should_stop or self.stop_after_step
        trainer.should_stop = is_requested and not is_accumulating(trainer)
        self.stop_after_step = is_requested and is_accumulating(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save last.ckpt every `every_n_epochs` epochs, and what earlier hooks have left."""
        if not is_resumable(trainer, "epoch"):
            return
        if self.best_is_due:
            self._save_best(trainer)
        every_n_epochs = self.options.every_n_epochs
        is_due = bool(every_n_epochs) and (trainer.current_epoch + 1) % every_n_epochs == 0
        # The last epoch is saved here, since in `on_train_end` the model holds the moving average.
        is_due = is_due or is_last_batch_of_run(trainer) or stops_early(trainer)
        if self.last_is_due or is_due:
            self.save_last(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save last.ckpt unless it was already saved after the last step."""
        if trainer.global_step != self.saved_step:
            self.save_last(trainer)
        self.wait()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Let an asynchronous save end before the process group is destroyed."""
        with suppress(Exception):  # the error that ended the training is reported instead
            self.wait()

    def save_last(self, trainer: Trainer) -> None:
        """Write last.ckpt, and keep the earlier last.ckpt as previous.ckpt."""
        self.wait()
        self.saved_step = trainer.global_step
        self.last_is_due = False
        if trainer.is_global_zero and is_checkpoint(self.last):
            _link(self.last, self.folder / "previous.ckpt")
        self.stopped = stops_early(trainer)
        self._save(trainer, self.last)
        self.stopped = False

    def wait(self) -> None:
        """Wait until an asynchronous save is complete; DiskError if it failed."""
        if self._save_in_progress is not None:
            self._save_in_progress.wait()

    def _save(self, trainer: Trainer, path: Path, then: Callable[[], None] = lambda: None) -> None:
        """Save a checkpoint; the first rank calls `then` when it is complete."""
        if self.options.format == "file":
            if trainer.is_global_zero and path.is_dir():  # of a run with another format
                remove(path)
            trainer.save_checkpoint(path)
            if trainer.is_global_zero:
                then()
            return
        from fourfold.checkpoints.sharded import Save  # imports torch.distributed.checkpoint

        strategy: Any = trainer.strategy
        strategy.full_state_dicts = False
        content = dump_checkpoint(trainer, weights_only=False)
        strategy.full_state_dicts = True
        if trainer.world_size > 1 and self._group is None:
            # Of its own: an asynchronous save communicates while the training does, from the CPU.
            self._group = torch.distributed.new_group(backend="gloo")
        group = self._group if isinstance(strategy, ModelParallelStrategy) else None
        if group is not None or trainer.is_global_zero:
            self._save_in_progress = Save(content, path, group, then, self.options.async_save)
        strategy.barrier()

    # best.ckpt

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save step=N.ckpt if its score is among the best, and last.ckpt if it is due.

        After the last batch of an epoch, `on_train_epoch_end` saves both.

        Raises:
            InputError: The metric `monitor` was not logged in this validation.
        """
        if trainer.state.fn != "fit":
            return
        ends_epoch = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
        self.best_is_due = bool(self.options.save_top_k)
        if self.best_is_due and (trainer.sanity_checking or not ends_epoch):
            self._save_best(trainer)
        if trainer.sanity_checking:
            return
        self._delay_stop(trainer)
        # After this hook of a run that stops early, Lightning has counted the epoch as complete,
        # and the model holds the moving average.
        self.last_is_due |= stops_early(trainer)
        if self.last_is_due and is_resumable(trainer, "validation"):
            self.save_last(trainer)

    def _save_best(self, trainer: Trainer) -> None:
        self.best_is_due = False
        name = self._monitored(trainer)  # rejects a wrong name before training starts, too
        if name is None or trainer.sanity_checking:
            return
        file = f"step={trainer.global_step:08d}.ckpt"
        scores = {**self.scores, file: float(trainer.callback_metrics[name])}
        mode = self.options.mode or ("min" if lower_is_better(name) else "max")
        sign = -1 if mode == "min" else 1
        # The best file is the first. On a tie, the later step is the first.
        ranking = sorted(scores, key=lambda name: (sign * scores[name], name), reverse=True)
        kept = ranking[: self.options.save_top_k]
        if math.isnan(scores[file]) or file not in kept:
            return
        self.scores = {name: scores[name] for name in kept}

        def rotate() -> None:
            for dropped in ranking[self.options.save_top_k :]:
                remove(self.folder / dropped)
            if kept[0] == file:
                _link(self.folder / file, self.best)

        self.wait()
        self.mid_accumulation = is_accumulating(trainer)
        self._save(trainer, self.folder / file, rotate)
        self.mid_accumulation = False

    def _monitored(self, trainer: Trainer) -> str | None:
        monitor = self.options.monitor
        if monitor is None:
            return next((name for name in MONITORS if name in trainer.callback_metrics), None)
        if monitor not in trainer.callback_metrics:
            names = sorted(name for name in trainer.callback_metrics if name.startswith("val/"))
            raise InputError(
                f"must be a metric of the validation ({', '.join(names)}), got {monitor}",
                option="checkpoint.monitor",
            )
        return monitor

    # State of the callback in a checkpoint.

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this callback, with the score of each best file by its name."""
        return {
            "saved_step": self.saved_step,
            "scores": dict(self.scores),
            "mid_accumulation": self.mid_accumulation,
            "stopped": self.stopped,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of this callback, except for the scores of files that were deleted."""
        self.saved_step = state_dict["saved_step"]
        self.stopped = state_dict["stopped"]
        scores = state_dict["scores"]
        self.scores = {file: s for file, s in scores.items() if is_checkpoint(self.folder / file)}


def is_resumable(trainer: Trainer, hook: Literal["batch", "validation", "epoch"]) -> bool:
    """Return True if a run resumes exactly from a checkpoint that is saved in the current hook.

    This holds for one hook of each optimizer step: `on_train_batch_end`, or else the
    `on_validation_end` that follows, or `on_train_epoch_end` after the last batch of an epoch.
    Lightning has not yet counted the epoch as complete when it calls the hooks before. A checkpoint
    saved before a validation would skip it.

    Args:
        trainer: The Trainer.
        hook: Current hook: "batch" is `on_train_batch_end`, and so on.
    """
    ends_epoch = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
    if hook == "epoch":
        return ends_epoch  # otherwise the run ends inside the epoch
    # Without a validation split, Lightning starts a validation without batches, which does not
    # count.
    data = resumable_data(trainer)
    has_split = data is None or "val" in data.splits
    follows = hook == "batch" and has_split and will_validate(trainer)
    return not (ends_epoch or follows or is_accumulating(trainer))


def stops_early(trainer: Trainer) -> bool:
    """Return True if a callback such as EarlyStopping ends the run before its maximum length.

    A callback has then requested the end, and `min_steps` and `min_epochs` are reached.
    """
    return trainer.should_stop and can_stop_early(trainer)


def is_last_batch_of_run(trainer: Trainer) -> bool:
    """Return True if `max_steps` or `max_epochs` ends the run after the current training batch."""
    last_batch = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
    last_epoch = trainer.current_epoch + 1 == trainer.max_epochs
    return trainer.global_step == trainer.max_steps or (last_batch and last_epoch)


def _link(source: Path, target: Path) -> None:
    """Make `target` a hard link to `source`, or a directory of hard links to its files.

    An existing `target` is replaced. If the file system has no hard links, files are copied.
    """
    if source.is_dir():
        part = target.with_name(f"{target.name}.shards.part")
        remove(part)
        try:
            part.mkdir()
            for file in source.iterdir():  # copytree would raise an error without a code
                _link_file(file, part / file.name)
            replace(part, target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    else:
        with atomic_path(target) as part:
            _link_file(source, part)


def _link_file(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
