"""Compilation of a model's blocks by torch.compile, as a function and as a callback."""

from lightning import Callback, LightningModule, Trainer
from torch import nn

from fourfold.callbacks.checkpointing.exact_resume import resumable_data
from fourfold.core.block import Block


def compile_blocks(model: nn.Module, *, dynamic: bool | None = None) -> None:
    """Compile each block (layer) of a model in place; parameter names do not change.

    Blocks of the same kind share one compiled graph. `torch._dynamo.config.recompile_limit` is set
    to at least 64 for the process, since torch would run further blocks uncompiled beyond its
    default limit of 8 graphs. The limit is for the graphs of all blocks together, in encoder and
    decoder, in training and evaluation.

    Args:
        model: A model of this package.
        dynamic: True if sequence lengths differ between batches, False if all lengths are equal;
            None lets torch detect different lengths.

    Example:
        >>> import fourfold
        >>> model = fourfold.create("gpt2", n_layers=1, vocab_size=100)
        >>> names = list(model.state_dict())
        >>> compile_blocks(model)  # torch compiles at the first call
        >>> list(model.state_dict()) == names
        True
    """
    import torch._dynamo

    config = torch._dynamo.config
    config.recompile_limit = max(64, config.recompile_limit)
    for module in model.modules():
        if isinstance(module, Block):
            module.compile(dynamic=dynamic)


class CompileBlocks(Callback):
    """Callback that compiles the blocks of the model when training starts.

    If sequence lengths differ, one graph with dynamic shapes serves all lengths from the first
    batch on. Without dynamic shapes, results would depend on the length of the first batch, and a
    resumed run has another first batch.

    Example:
        >>> from fourfold.data import RecallData
        >>> from fourfold.models import CausalLMConfig
        >>> from fourfold.tasks import CausalLanguageModeling
        >>> config = CausalLMConfig(d_model=16, n_layers=1, n_heads=2, vocab_size=None)
        >>> task, data = CausalLanguageModeling(config), RecallData(distance=4)
        >>> quiet = {"enable_progress_bar": False, "enable_model_summary": False}
        >>> trainer = Trainer(fast_dev_run=1, callbacks=[CompileBlocks()], **quiet)
        >>> import torch
        >>> with torch.compiler.set_stance("force_eager"):  # without the time of the compilation
        ...     trainer.fit(task, data)
        >>> trainer.global_step
        1
    """

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compile the blocks, after the strategy has moved the model to its device.

        Raises:
            InputError: The model runs on a CPU, and there is no C++ compiler.
        """
        data = resumable_data(trainer)
        dynamic = None if data is None else not data.split("train").has_static_shape
        compile_blocks(pl_module, dynamic=dynamic)
