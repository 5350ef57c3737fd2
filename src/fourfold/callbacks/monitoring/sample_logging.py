"""Callback that saves sample outputs, attention maps and confusion matrices of a model.

The folder RUN/val/ is written when training ends, and RUN/test/ in each test. Both folders hold
samples.csv, attention.png and other files of the task for N_SAMPLES examples of the split. They are
the first examples or, for a classification task, examples of all classes in turn. A test of a
classifier also writes confusion.csv and confusion.png, which count all examples.
"""

from pathlib import Path
from typing import Any

import numpy as np
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import Tensor

from fourfold.callbacks.checkpointing.exact_resume import resumable_data
from fourfold.generation.step import decoding_mode
from fourfold.loggers.media import AttentionMaps, ConfusionMatrix, Media
from fourfold.loggers.wandb_logger import WandbRunLogger

N_SAMPLES = 8
MAX_SAMPLES = 16  # maximum number of examples if there are more than N_SAMPLES classes


class LogSamples(Callback):
    """Callback that saves sample outputs of the task to files and to Weights & Biases.

    A task with sample outputs has a method `sample_outputs(batch, split)` that returns `Media`
    (tables, images, attention maps) by name. The method is called on the first rank only, and so
    must not communicate with other ranks. Sample outputs require a `ResumableDataModule`, which can
    make a single batch.

    Args:
        folder: The run directory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        data = resumable_data(trainer)
        if data is not None and "val" in data.splits:
            self._save(trainer, pl_module, "val")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._save(trainer, pl_module, "test")

    def _save(self, trainer: Trainer, module: LightningModule, split: str) -> None:
        if not trainer.is_global_zero:
            return
        try:
            folder = self.folder / split
            for name, media in collect_media(trainer, module, split).items():
                folder.mkdir(parents=True, exist_ok=True)
                files = media.save(folder, name)
                for logger in trainer.loggers:
                    if isinstance(logger, WandbRunLogger):
                        logger.log_media(f"{split}/{name}", media, files, trainer.global_step)
        except Exception as error:  # a training of days must not fail because of an image
            reason = " ".join(str(error).split())
            print(f"could not save samples of the {split} split: {reason}", flush=True)


def collect_media(trainer: Trainer, module: LightningModule, split: str) -> dict[str, Media]:
    """Return the confusion matrix and the sample outputs of a split, by name.

    Left out are a confusion matrix that was not counted, and attention maps of a model without
    attention. Sample outputs are left out without a method `sample_outputs`, for sharded weights,
    and without a `ResumableDataModule`.
    """
    collected: dict[str, Media] = {}
    counts = getattr(module, "summary", {}).get(f"{split}/confusion")
    if counts is not None:
        names = getattr(module, "artifacts", {}).get("class_names") or range(len(counts))
        collected["confusion"] = ConfusionMatrix([str(name) for name in names], counts)
    # One rank alone cannot run a model whose weights are sharded.
    has_all_weights = type(trainer.strategy) in (SingleDeviceStrategy, DDPStrategy)
    data = resumable_data(trainer)
    if not hasattr(module, "sample_outputs") or data is None or not has_all_weights:
        return collected
    dataset = data.split(split)
    # A DataLoader would take its seed from torch's generator and change the next random numbers.
    rows = sample_rows(getattr(dataset, "labels", None), len(dataset))
    batch = dataset.batch(rows, 0, 0)
    batch = trainer.strategy.batch_to_device(trainer.precision_plugin.convert_input(batch))
    with trainer.precision_plugin.forward_context(), decoding_mode(module) as quiet:
        sample_outputs: Any = quiet.sample_outputs
        collected |= sample_outputs(batch, split)
    return {k: x for k, x in collected.items() if not isinstance(x, AttentionMaps) or x.maps}


def sample_rows(labels: Any, n_rows: int) -> np.ndarray:
    """Return the rows of a split whose outputs are logged: examples of all classes in turn.

    There are N_SAMPLES rows, or one for each class up to MAX_SAMPLES, ascending. Labels that are no
    integers, and None, select the first N_SAMPLES rows.
    """
    classes = np.asarray(labels) if isinstance(labels, np.ndarray | Tensor) else None
    if classes is None or classes.ndim != 1 or not np.issubdtype(classes.dtype, np.integer):
        return np.arange(min(N_SAMPLES, n_rows))
    from fourfold.data.readers.labels import stratified_subset

    n_samples = max(N_SAMPLES, min(len(np.unique(classes)), MAX_SAMPLES))
    return stratified_subset(classes, min(n_samples, n_rows), 0)
