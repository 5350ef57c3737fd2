"""Evaluation under DDP, where one rank may have a batch more than another."""

import torch.distributed as dist
from lightning import Callback, LightningModule, Trainer
from torch.nn.parallel import DistributedDataParallel


class UnevenEvaluation(Callback):
    """Sends buffers once before a validation, and not before each of its batches.

    DDP sends the first rank's to all others before every forward, also in evaluation, and the
    message of a batch that others do not have would meet their next one.
    """

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """All ranks are here: let them have the same."""
        model = trainer.strategy.model
        if isinstance(model, DistributedDataParallel):
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)
            model.require_forward_param_sync = False

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Training goes on as before."""
        model = trainer.strategy.model
        if isinstance(model, DistributedDataParallel):
            model.require_forward_param_sync = True
