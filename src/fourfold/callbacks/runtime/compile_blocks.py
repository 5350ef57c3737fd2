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
    """

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compile the blocks, after the strategy has moved the model to its device."""
        # FSDP2 has sharded the blocks. The graphs would be the same if they were compiled before,
        # because torch runs the hooks of a compiled module outside of its graph.
        data = resumable_data(trainer)
        dynamic = None if data is None else not data.split("train").has_static_shape
        compile_blocks(pl_module, dynamic=dynamic)
