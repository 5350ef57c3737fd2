"""Callback that lets ranks evaluate different numbers of batches."""

import torch.distributed as dist
from lightning import Callback, LightningModule, Trainer
from torch.nn.parallel import DistributedDataParallel

from fourfold.lightning_internals import divide_evaluation_exactly


class DDPUnevenEvaluation(Callback):
    """Callback for an exact evaluation on several devices, in which no example counts twice.

    The examples are divided among the ranks without repetition, so a rank may have one batch more
    than the other ranks. Buffers are broadcast once per validation. DDP broadcasts the buffers of
    rank 0 before every forward pass, also in evaluation. Without this callback, the other ranks
    would match the broadcast before the additional batch with that of their next training step.
    Every task adds this callback to the Trainer.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        divide_evaluation_exactly(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        model = trainer.strategy.model
        if isinstance(model, DistributedDataParallel):
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)
            model.require_forward_param_sync = False

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # FSDP2 usually ends an evaluation in the step of the last batch, which may be unknown.
        end = getattr(trainer.strategy, "end_evaluation", None)
        if end is not None:
            end()

    on_test_epoch_end = on_predict_epoch_end = on_validation_epoch_end

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        model = trainer.strategy.model
        if isinstance(model, DistributedDataParallel):
            model.require_forward_param_sync = True
