"""What a model does, to look at: once when training ends, and once in each test.

RUN/val/ and RUN/test/ get samples.csv, attention.png and whatever else the task shows, of the first
rows of the split; a test of classes gets confusion.csv and confusion.png of all of it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import nn

from fourfold.callbacks.media import Confusion, Media
from fourfold.callbacks.wandb_run import WandbRun

ROWS = 8


class Pictures(Callback):
    """Asks the task for what it can show, writes it down, and hands it on to Weights & Biases.

    A task that has something to show has a method `show(batch, split)` that gives media by name; it
    is called on the first rank alone, so nothing in it may wait for another one.

    Args:
        folder: The run's directory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the validation split with the weights that training ends with."""
        if "val" in trainer.datamodule.splits:  # type: ignore[attr-defined]
            self._draw(trainer, pl_module, "val")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the test split."""
        self._draw(trainer, pl_module, "test")

    def _draw(self, trainer: Trainer, module: LightningModule, split: str) -> None:
        if not trainer.is_global_zero:
            return
        try:
            found = media_of(trainer, module, split)
            folder = self.folder / split
            for name, media in found.items():
                folder.mkdir(parents=True, exist_ok=True)
                files = media.save(folder, name)
                for logger in trainer.loggers:
                    if isinstance(logger, WandbRun):
                        logger.log_media(f"{split}/{name}", media, files, trainer.global_step)
        # A training of days, or its test, is not lost for a picture.
        except Exception as error:
            print(f"could not draw the {split} split: {' '.join(str(error).split())}", flush=True)


def media_of(trainer: Trainer, module: LightningModule, split: str) -> dict[str, Media]:
    """What there is to show of a split, by name."""
    found: dict[str, Media] = {}
    counts = getattr(module, "summary", {}).get(f"{split}/confusion")
    if counts is not None:
        names = getattr(module, "artifacts", {}).get("class_names") or range(len(counts))
        found["confusion"] = Confusion([str(name) for name in names], counts)
    # Of a model in pieces, one rank alone could not run.
    whole = type(trainer.strategy) in (SingleDeviceStrategy, DDPStrategy)
    show: Callable[..., dict[str, Media]] | None = getattr(module, "show", None)
    if show is None or not whole:
        return found
    rows = trainer.datamodule.split(split)  # type: ignore[attr-defined]
    # Made on the spot: a loader would take its number out of torch's generator.
    batch = rows.batch(np.arange(min(ROWS, len(rows))), 0, 0)
    batch = trainer.precision_plugin.convert_input(batch)
    batch = trainer.strategy.batch_to_device(batch)
    with evaluating(module), trainer.precision_plugin.forward_context():
        found |= show(batch, split)
    return found


@contextmanager
def evaluating(module: nn.Module) -> Iterator[Any]:
    """Without dropout and gradients; afterwards every part of the module is as it was."""
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, mode in modes.items():
            part.training = mode
