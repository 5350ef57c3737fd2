"""Blocks compiled by torch.compile."""

import os
import shutil

import torch
import torch._dynamo
from lightning import Callback, LightningModule, Trainer
from torch import nn

from fourfold.core.errors import InputError
from fourfold.core.stack import Block

GRAPHS = 64  # more than any training of ours has, and fewer than torch allows a process


def compile_blocks(model: nn.Module, *, dynamic: bool | None = None) -> None:
    """Compile each block, in place: one graph serves all layers, and no name changes.

    Args:
        model: Any of ours.
        dynamic: Whether lengths differ from batch to batch; None finds it out.
    """
    # Torch counts all blocks as one: of encoder and decoder, in training and evaluation, for a last
    # batch of one row. Past its limit, 8 at first, what is new would not be compiled.
    config = torch._dynamo.config
    config.recompile_limit = max(GRAPHS, config.recompile_limit)
    for module in model.modules():
        if isinstance(module, Block):
            module.compile(dynamic=dynamic)


class CompileBlocks(Callback):
    """Does so as training begins.

    Where lengths differ one graph serves them all from the first batch on, so that what is computed
    does not depend on which came first: a resumed run ends as one that was never interrupted.
    """

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The model is there, and has been distributed.

        Raises:
            InputError: A CPU for which nothing can be compiled.
        """
        compiler = os.environ.get("CXX", "g++" if shutil.which("g++") else "clang++")
        if trainer.strategy.root_device.type == "cpu" and shutil.which(compiler) is None:
            raise InputError("compile is true, but there is no C++ compiler: install g++ or clang")
        data = trainer.datamodule  # type: ignore[attr-defined]
        compile_blocks(pl_module, dynamic=not data.split("train").has_one_shape)
