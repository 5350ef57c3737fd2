"""The mean of the weights of the last checkpoints (Vaswani et al. 2017, section 6.1)."""

from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from torch import Tensor


class AverageLast(Checkpoint):
    """Keeps snapshots of the weights, and writes their mean as average.ckpt when training ends.

    Snapshots lie on the disk, so that a resumed run has those of before. It is a `Checkpoint` only
    so that Lightning calls it after all other callbacks.

    Args:
        n: How many snapshots the mean is of (the paper: 5 for base, 20 for big).
        every_n_steps: Optimizer steps between two; None takes one at the end of every epoch.
        folder: The run's folder of checkpoints.
    """

    def __init__(self, n: int, every_n_steps: int | None, folder: Path) -> None:
        self.n, self.every_n_steps = n, every_n_steps
        self.snapshots, self.average = folder / "snapshots", folder / "average.ckpt"
        self._last = 0  # the step of the snapshot that was taken last

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget snapshots that lie beyond the checkpoint from which the run goes on."""
        if trainer.is_global_zero:
            for step, file in self._taken():
                if step > trainer.global_step:
                    file.unlink()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Take one if this batch completed an optimizer step whose number is due, or an epoch.

        A run that is stopped here never hears of the epoch's end.
        """
        step, loop = trainer.global_step, trainer.fit_loop.epoch_loop
        if loop._should_accumulate() or not step:
            return
        if step % self.every_n_steps == 0 if self.every_n_steps else loop._is_training_done:
            self._take(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take one, where none is of this step."""
        if not self.every_n_steps and self._last != trainer.global_step:
            self._take(trainer, pl_module)

    def _take(self, trainer: Trainer, pl_module: LightningModule) -> None:
        content = {"state_dict": trainer.strategy.lightning_module_state_dict()}
        trainer.strategy.save_checkpoint(content, self._file(trainer.global_step))
        self._last = trainer.global_step
        if trainer.is_global_zero:
            for _, file in self._taken()[: -self.n]:
                file.unlink()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the mean, as a checkpoint that all commands take.

        Also where training had ended, but was killed before it had written this.
        """
        # The first process wrote the snapshots, and others may not see them yet.
        if not trainer.strategy.broadcast(self._is_due()):
            return
        checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=True)
        files = [file for _, file in self._taken()] if trainer.is_global_zero else []
        checkpoint["state_dict"] = mean_of(files)  # the first process writes it
        # Lightning's counts have moved on by now, unless training had ended before this command.
        del checkpoint["loops"]  # nobody goes on from a mean
        checkpoint["epoch"] = trainer.datamodule.consumed[0]  # type: ignore[attr-defined]
        checkpoint["averaged"] = [file.name for file in files]
        trainer.strategy.save_checkpoint(checkpoint, self.average)

    def _is_due(self) -> bool:
        """Whether there are snapshots, and no mean that is younger than the last."""
        files = [file for _, file in self._taken()]
        if not files or not self.average.is_file():
            return bool(files)
        return self.average.stat().st_mtime_ns < files[-1].stat().st_mtime_ns

    def _file(self, step: int) -> Path:
        return self.snapshots / f"step={step:08d}.pt"

    def _taken(self) -> list[tuple[int, Path]]:
        files = sorted(self.snapshots.glob("step=*.pt"))
        return [(int(file.stem.removeprefix("step=")), file) for file in files]


def mean_of(files: list[Path]) -> dict[str, Tensor]:
    """Mean of the floating-point tensors of snapshots, others as in the last.

    Summed in float64 and one file at a time, so that twenty snapshots need the memory of two.
    """
    mean: dict[str, Tensor] = {}
    state: dict[str, Tensor] = {}
    for file in files:
        state = torch.load(file, map_location="cpu", weights_only=True)["state_dict"]
        for name, value in state.items():
            if value.is_floating_point():
                mean[name] = mean.get(name, 0.0) + value.double() / len(files)
    return {name: mean[name].to(value.dtype) if name in mean else value
            for name, value in state.items()}  # fmt: skip
