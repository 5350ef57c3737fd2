"""Weight averaging: the mean of the last checkpoints, and an exponential moving average (EMA)."""

from pathlib import Path
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, EMAWeightAveraging
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from fourfold.callbacks.checkpointing.exact_resume import resumable_data
from fourfold.checkpoints.files import read_file
from fourfold.lightning_internals import (
    average_tensors,
    dump_checkpoint,
    is_accumulating,
    set_average_device,
    training_epoch_is_done,
)


class CheckpointAveraging(Checkpoint):
    """Callback that writes the mean weights of the last checkpoints to average.ckpt.

    See Vaswani et al. 2017, section 6.1. During training, the callback saves snapshots: files with
    the weights alone. When training ends, it writes average.ckpt. A resumed run also averages the
    snapshots of the interrupted run. The class derives from `Checkpoint` because Lightning calls
    `Checkpoint` callbacks last.

    Args:
        n: Number of snapshots to average, the last n of the run (the paper: 5 for the base model,
            20 for the big model).
        every_n_steps: Optimizer steps between two snapshots; None saves one after every epoch.
        folder: Folder to which average.ckpt and a folder snapshots/ are written.
    """

    def __init__(self, n: int, every_n_steps: int | None, folder: Path) -> None:
        self.n = n
        self.every_n_steps = every_n_steps
        self.snapshots = folder / "snapshots"
        self.average = folder / "average.ckpt"
        self._last_step = 0  # step of the newest snapshot of this process

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Delete snapshots of steps after the step from which the run resumes."""
        if trainer.is_global_zero:
            for file in self._snapshot_files():
                if int(file.stem.removeprefix("step=")) > trainer.global_step:
                    file.unlink()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Save a snapshot if it is due, also at the end of an epoch.

        Lightning does not call `on_train_epoch_end` if a callback stops the run after this batch.
        """
        step = trainer.global_step
        if is_accumulating(trainer) or not step:
            return
        every = self.every_n_steps
        is_due = step % every == 0 if every else training_epoch_is_done(trainer)
        if is_due:
            self._save_snapshot(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self.every_n_steps and self._last_step != trainer.global_step:
            self._save_snapshot(trainer)

    def _save_snapshot(self, trainer: Trainer) -> None:
        content = {"state_dict": trainer.strategy.lightning_module_state_dict()}
        file = self.snapshots / f"step={trainer.global_step:08d}.pt"
        trainer.strategy.save_checkpoint(content, file)
        self._last_step = trainer.global_step
        if trainer.is_global_zero:
            for old in self._snapshot_files()[: -self.n]:
                old.unlink()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the mean of the snapshots to average.ckpt, unless it is newer than all of them.

        If a run was killed between its last step and this hook, the file is written when the run
        is started again.
        """
        files = self._snapshot_files() if trainer.is_global_zero else []
        written_at = self.average.stat().st_mtime_ns if self.average.is_file() else 0
        is_due = any(file.stat().st_mtime_ns > written_at for file in files)
        # Other processes may not see the files of the first process yet.
        if not trainer.strategy.broadcast(is_due):
            return
        checkpoint = dump_checkpoint(trainer, weights_only=True)
        checkpoint["state_dict"] = average_state_dicts(files)  # written by the first process
        # At the end of training, Lightning's counters are already those of the next epoch.
        del checkpoint["loops"]
        data = resumable_data(trainer)
        if data is not None:
            checkpoint["epoch"] = data.position.epoch
        checkpoint["averaged"] = [file.name for file in files]
        trainer.strategy.save_checkpoint(checkpoint, self.average)

    def _snapshot_files(self) -> list[Path]:
        return sorted(self.snapshots.glob("step=*.pt"))


def average_state_dicts(files: list[Path]) -> dict[str, Tensor]:
    """Return the mean of the state dicts in several snapshot files, with the dtypes of the files.

    Floating-point tensors are averaged. All other tensors are those of the last file. Tensors are
    summed in float64, one file at a time, so that at most two sets of weights are in memory.

    Args:
        files: Paths of the snapshots, each of which holds a state dict under the key `state_dict`.
    """
    mean: dict[str, Tensor] = {}
    state: dict[str, Tensor] = {}
    for file in files:
        state = read_file(file)["state_dict"]
        for name, value in state.items():
            if value.is_floating_point():
                mean[name] = mean.get(name, 0.0) + value.double() / len(files)
    return {name: mean.get(name, value).to(value.dtype) for name, value in state.items()}


class ExponentialMovingAverage(EMAWeightAveraging):
    """Exponential moving average of the weights, used in validation and saved in checkpoints.

    The average starts at the first step. With a delayed start, Lightning would validate untrained
    weights until the start, and a training that ended earlier would end with untrained weights.

    Args:
        decay: Factor d of the average, which after each optimizer step becomes
            d * average + (1 - d) * weights.
    """

    def __init__(self, decay: float) -> None:
        # Buffers are constants, whose average would accumulate rounding errors, or running
        # statistics, which are averages already.
        super().__init__(decay=decay, use_buffers=False)
        self._of_shards: AveragedModel | None = None  # average of sharded weights

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Create the averaged weights on the device to which the model will be moved."""
        if isinstance(trainer.strategy, ModelParallelStrategy):
            return
        if stage == "fit" and trainer.precision == "64-true":
            # Without the context, the average is in fp32, and a validation rounds the weights.
            with trainer.precision_plugin.module_init_context():
                pl_module.configure_model()
        set_average_device(self, trainer.strategy.root_device)
        super().setup(trainer, pl_module, stage)

    # Lightning copies the model, but modules of FSDP2 cannot be copied. The average of sharded
    # weights consists of shards alone. The strategy saves and loads it as weights of the model.

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if isinstance(trainer.strategy, ModelParallelStrategy):
            self._of_shards = average_tensors(self, pl_module)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if self._of_shards is None:
            super().on_save_checkpoint(trainer, pl_module, checkpoint)
            return
        checkpoint["current_model_state"] = checkpoint["state_dict"]
        checkpoint["averaging_state"] = {"n_averaged": self._of_shards.n_averaged}
        self.on_validation_epoch_start(trainer, pl_module)  # exchanges weights and average
        checkpoint["state_dict"] = trainer.strategy.lightning_module_state_dict()
        self.on_validation_epoch_end(trainer, pl_module)

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        if self._of_shards is None:
            super().on_load_checkpoint(trainer, pl_module, checkpoint)
            return
        # The strategy has loaded the average, or the weights of a checkpoint without an average.
        self._of_shards = average_tensors(self, pl_module)
        if "current_model_state" in checkpoint:
            self._of_shards.n_averaged.copy_(checkpoint["averaging_state"]["n_averaged"])
            trained = {"state_dict": checkpoint["current_model_state"]}
            trainer.strategy.load_model_state_dict(trained)
