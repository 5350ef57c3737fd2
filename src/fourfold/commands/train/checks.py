"""Check that a model fits into memory, before training starts."""

from dataclasses import replace

import torch
from lightning import LightningDataModule, Trainer
from lightning.pytorch.strategies import ModelParallelStrategy

from fourfold.analysis.memory import format_bytes, state_memory
from fourfold.checkpoints.load import build_model
from fourfold.environment import available_memory
from fourfold.errors import InputError
from fourfold.layers.base_model import on_meta
from fourfold.training.finetuning import apply_finetuning
from fourfold.training.task import Task


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
