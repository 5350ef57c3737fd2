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

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Let the Trainer divide the examples of DataLoaders with a length without repetition."""
        divide_evaluation_exactly(trainer)

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
