"""`--optimizer` and `--lr_scheduler`: an optimizer and a scheduler of torch, by class path."""

from collections.abc import Callable
from inspect import signature
from typing import Any

from lightning import LightningModule
from lightning.pytorch.cli import instantiate_class

from fourfold.commands.train.parser import trainer_errors
from fourfold.errors import InputError


def replace_optimizer(
    task: LightningModule, optimizer: Any, scheduler: Any, combine: Callable[..., Any]
) -> None:
    """Let a task train with an optimizer of torch instead of that of `model.optimizer`.

    The optimizer has one group of all trainable parameters. It is built when training starts, since
    a task builds its model only then.

    Args:
        task: The task, whose method `configure_optimizers` is replaced.
        optimizer: Mapping with class_path and init_args; None changes nothing.
        scheduler: The same for a scheduler; None keeps the learning rate constant.
        combine: `LightningCLI.configure_optimizers`, which returns both as Lightning expects them.

    Raises:
        InputError: There is a scheduler without an optimizer, or `model.optimizer` or
            `model.schedule` differs from its default.
    """
    if optimizer is None:
        if scheduler is not None:
            raise InputError("needs --optimizer; model.schedule is ours", option="--lr_scheduler")
        return
    for name in ("optimizer", "schedule"):
        parameter = signature(type(task)).parameters.get(name)
        values = vars(getattr(task, name, None) or object)
        defaults = vars(parameter.default) if parameter else {}
        if changed := [key for key, default in defaults.items() if values[key] != default]:
            message = f"must have its defaults with --optimizer, got another {', '.join(changed)}"
            raise InputError(message, option=f"model.{name}")

    def configure_optimizers() -> Any:
        parameters = [p for p in task.parameters() if p.requires_grad]
        with trainer_errors("torch.", "lightning.", option="--optimizer:"):
            built: Any = instantiate_class(parameters, optimizer)
            schedule = instantiate_class(built, scheduler) if scheduler else None
        # As in `Task.configure_optimizers`: Lightning unscales and clips the gradients of fp16.
        built._step_supports_amp_scaling = False
        return combine(task, built, schedule)

    task.configure_optimizers = configure_optimizers  # type: ignore[method-assign]
