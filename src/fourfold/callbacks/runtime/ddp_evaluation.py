"""Callback that lets DDP ranks validate different numbers of batches."""

import torch.distributed as dist
from lightning import Callback, LightningModule, Trainer
from torch.nn.parallel import DistributedDataParallel


class DDPUnevenEvaluation(Callback):
    """Callback that broadcasts buffers once per validation instead of before each batch.

    DDP broadcasts the buffers of rank 0 before every forward pass, also in evaluation. A rank may
    have one batch more than the other ranks. Without this callback, the other ranks would match the
    broadcast before this batch with their broadcast of the next training step.

    Example:
        >>> from fourfold.data import RecallData
        >>> from fourfold.models import CausalLMConfig
        >>> from fourfold.tasks import CausalLanguageModeling
        >>> config = CausalLMConfig(d_model=16, n_layers=1, n_heads=2, vocab_size=None)
        >>> task, data = CausalLanguageModeling(config), RecallData(distance=4)
        >>> quiet = {"enable_progress_bar": False, "enable_model_summary": False}
        >>> trainer = Trainer(fast_dev_run=1, callbacks=[DDPUnevenEvaluation()], **quiet)
        >>> trainer.fit(task, data)  # without DDP, the callback changes nothing
        >>> trainer.global_step
        1
    """

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Broadcast the buffers of rank 0, and disable the broadcasts of DDP."""
        model = trainer.strategy.model
        if isinstance(model, DistributedDataParallel):
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)
            model.require_forward_param_sync = False

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Enable the broadcasts of DDP again for training."""
        model = trainer.strategy.model
        if isinstance(model, DistributedDataParallel):
            model.require_forward_param_sync = True
