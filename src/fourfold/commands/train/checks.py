"""Checks of a training before it starts: validation interval and memory of the model."""

from dataclasses import replace

import torch
from lightning import LightningDataModule, Trainer
from lightning.pytorch.strategies import ModelParallelStrategy

from fourfold.analysis.memory import format_bytes, state_memory
from fourfold.checkpoints.load import build_model
from fourfold.data.loading.datamodule import ResumableDataModule
from fourfold.environment import available_memory
from fourfold.errors import InputError
from fourfold.layers.base_model import on_meta
from fourfold.training.finetuning import apply_finetuning
from fourfold.training.task import Task


def check_interval(trainer: Trainer, datamodule: LightningDataModule) -> None:
    """Check that `val_check_interval` is at most the number of training batches of an epoch.

    Lightning checks this as well, but only after the loggers have started.

    Raises:
        InputError: `val_check_interval` is larger than the number of training batches of an epoch.
    """
    interval = trainer.val_check_interval
    limit = trainer.limit_train_batches
    within_epoch = trainer.check_val_every_n_epoch is not None and trainer.limit_val_batches > 0
    if not isinstance(datamodule, ResumableDataModule) or not within_epoch:
        return
    n_batches = datamodule.n_train_batches()
    n_batches = min(n_batches, limit) if isinstance(limit, int) else int(n_batches * limit)
    if isinstance(interval, int) and 0 < n_batches < interval:
        message = f"must be at most {n_batches}, the training batches of an epoch, unless"
        message += f" trainer.check_val_every_n_epoch is null; got {interval}"
        raise InputError(message, option="trainer.val_check_interval")


def check_memory(task: Task, trainer: Trainer, datamodule: LightningDataModule) -> None:
    """Check that weights, gradients and optimizer states fit into memory.

    The model is built on the meta device, which takes no memory. Models of the user, sharded
    models, and models whose sizes depend on data that are not read yet are not checked.

    Raises:
        InputError: The memory is too small.
    """
    values = {
        name: getattr(datamodule, name, None) if trainer.world_size == 1 else None
        for name in task.inferred_from_data
        if getattr(task.config, name, None) is None
    }
    is_sharded = isinstance(trainer.strategy, ModelParallelStrategy)
    is_shipped = task.model_class.__module__.startswith("fourfold.")
    if None in values.values() or is_sharded or not is_shipped:
        return
    try:
        with on_meta():
            model = build_model(task.model_class, replace(task.config, **values))
        apply_finetuning(model, task.tuning)
        needed = state_memory(model, str(trainer.precision), task.optimizer.name)
    except InputError:  # reported with more details when the model itself is built
        return
    device = trainer.strategy.root_device
    available: int | None
    if device.type == "cuda":
        available, place = torch.cuda.mem_get_info(device)[0], f"on {device}"
    else:
        available, place = available_memory(), "in this machine's RAM"
        needed *= trainer.num_devices
    if available is not None and needed > available:
        raise InputError(
            f"needs at least {format_bytes(needed)} for weights, gradients and optimizer states"
            f" ({needed:,} bytes), but {format_bytes(available)} ({available:,} bytes) are free"
            f" {place}; --check_memory false trains nevertheless",
            option="the model",
        )
