"""Callback that saves a batch whose loss is NaN or infinite, together with the weights."""

from pathlib import Path
from typing import Any

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor

from fourfold.callbacks.checkpointing.exact_resume import step_seed
from fourfold.checkpoints.files import write_file
from fourfold.errors import TrainingStopped


class SaveNonfiniteBatch(Callback):
    """Callback that writes nonfinite_step=N.pt if a loss in step N is NaN or infinite.

    The file holds the weights, the first batch with such a loss, and the seed of this batch. The
    command `fourfold replay` runs this batch again to find the layer at fault.

    The batches of a step are kept in memory until the next step. The losses are examined only after
    the task has stopped the training, because examining each loss would wait for the GPU. The
    LightningModule must have `loss_normalizer.nonfinite`, as every task has. Batches must be named
    tuples.

    Args:
        folder: The run directory.

    Example:
        >>> import tempfile
        >>> from fourfold.data import RecallData
        >>> from fourfold.models import CausalLMConfig
        >>> from fourfold.tasks import CausalLanguageModeling
        >>> config = CausalLMConfig(d_model=16, n_layers=1, n_heads=2, vocab_size=None)
        >>> task, data = CausalLanguageModeling(config), RecallData(distance=4)
        >>> quiet = {"enable_progress_bar": False, "enable_model_summary": False}
        >>> class Spoil(Callback):
        ...     def on_train_start(self, trainer, module):
        ...         module.model.embed.tokens.weight.data.fill_(float("nan"))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     callbacks = [Spoil(), SaveNonfiniteBatch(Path(folder))]
        ...     try:
        ...         Trainer(fast_dev_run=2, callbacks=callbacks, **quiet).fit(task, data)
        ...     except TrainingStopped:  # doctest: +ELLIPSIS
        ...         print(*(file.name for file in Path(folder).iterdir()))
        to find the layer that is at fault: fourfold replay ...nonfinite_step=00000001.pt
        nonfinite_step=00000001.pt
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._batch: Any = None
        # Batch, seed and nonfinite flag of each micro-batch of the current step.
        self._micro_batches: list[tuple[Any, int, Tensor]] = []

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Keep a reference to the current batch.

        At the first micro-batch of an optimizer step, the batches of the previous step are
        discarded.
        """
        if batch_idx % trainer.accumulate_grad_batches == 0:
            self._micro_batches = []
        self._batch = batch

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Store the current batch, its seed, and a flag that is True if its loss is not finite."""
        nonfinite: Any = pl_module.loss_normalizer.nonfinite  # type: ignore[union-attr]
        self._micro_batches.append((self._batch, step_seed(trainer), nonfinite))

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """If a NaN or infinite loss stopped the training, write nonfinite_step=N.pt.

        Each rank with such a loss writes a file. If there are several ranks, the name also contains
        the rank.
        """
        if not isinstance(exception, TrainingStopped):
            return
        weights = trainer.strategy.lightning_module_state_dict()
        if isinstance(trainer.strategy, ModelParallelStrategy):  # only the first rank has them
            weights = trainer.strategy.broadcast(weights)
        failed = [(batch, seed) for batch, seed, nonfinite in self._micro_batches if nonfinite]
        if not failed or not hasattr(failed[0][0], "_asdict"):
            return
        batch, seed = failed[0]
        replay = {
            "batch_class": type(batch).__name__,
            "batch": batch._asdict(),
            "seed": seed,
            "step": trainer.global_step + 1,
            "precision": str(trainer.precision),
            "device": trainer.strategy.root_device.type,
        }
        content = {"state_dict": weights, "replay": replay}
        pl_module.on_save_checkpoint(content)
        rank = f"_rank={trainer.global_rank}" if trainer.world_size > 1 else ""
        file = self.folder / f"nonfinite_step={trainer.global_step + 1:08d}{rank}.pt"
        self.folder.mkdir(parents=True, exist_ok=True)
        write_file(content, file)
        print(f"to find the layer that is at fault: fourfold replay {file}", flush=True)
