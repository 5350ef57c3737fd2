"""Keeps the batch whose loss is not a finite number, with the weights that met it."""

from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor

from fourfold.callbacks.resume import step_seed
from fourfold.core.errors import TrainingStopped
from fourfold.files import whole


class KeepForReplay(Callback):
    """Writes nonfinite_step=N.pt, which `fourfold replay` runs once more.

    Needs a module with `window.broken`, as every task has. Which batch it was is only asked when
    training has stopped: to look after each would be to wait for a GPU each time.

    Args:
        folder: The run's directory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._batch: Any = None
        # Of the step that is being made: batches, their seeds, and whether the loss was broken.
        self._window: list[tuple[Any, int, Tensor]] = []

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Hold the batch, and let go of those of a step that was made."""
        if batch_idx % trainer.accumulate_grad_batches == 0:
            self._window = []
        self._batch = batch

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Hold it for as long as it may turn out to be the one."""
        broken: Any = pl_module.window.broken  # type: ignore[union-attr]
        self._window.append((self._batch, step_seed(trainer), broken))

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Write the file, on the rank that has the batch."""
        if not isinstance(exception, TrainingStopped):
            return
        weights = trainer.strategy.lightning_module_state_dict()
        if isinstance(trainer.strategy, ModelParallelStrategy):  # only the first rank has them
            weights = trainer.strategy.broadcast(weights)
        content: dict[str, Any] = {"state_dict": weights}
        found = next(((b, seed) for b, seed, broken in self._window if broken), None)
        if found is None:
            return
        pl_module.on_save_checkpoint(content)
        content["replay"] = self._replay(trainer, *found)
        rank = f"_rank={trainer.global_rank}" if trainer.world_size > 1 else ""
        file = self.folder / f"nonfinite_step={trainer.global_step + 1:08d}{rank}.pt"
        self.folder.mkdir(parents=True, exist_ok=True)
        with whole(file) as part:
            torch.save(content, part)
        print(f"to see where it comes from: fourfold replay {file}", flush=True)

    def _replay(self, trainer: Trainer, batch: Any, seed: int) -> dict[str, Any]:
        return {
            "batch_class": type(batch).__name__,
            "batch": batch._asdict(),
            "seed": seed,
            "step": trainer.global_step + 1,
            "precision": str(trainer.precision),
            "device": trainer.strategy.root_device.type,
        }
