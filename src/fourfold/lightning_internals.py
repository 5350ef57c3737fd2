"""Functions and classes that use private attributes of Lightning, for lightning>=2.6.6,<2.7.

No other module uses a private attribute of a Lightning object, so only this module has to be
checked when Lightning is upgraded. `tests/test_lightning_internals.py` tests every function.
"""

from collections.abc import Callable, Sequence
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.overrides.distributed import (
    UnrepeatedDistributedSampler,
    UnrepeatedDistributedSamplerWrapper,
)
from lightning.pytorch.trainer.connectors.data_connector import _DataConnector
from lightning.pytorch.trainer.connectors.logger_connector import _LoggerConnector
from lightning.pytorch.trainer.states import RunningStage
from lightning.pytorch.utilities.rank_zero import rank_zero_warn
from torch import device, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DistributedSampler, RandomSampler, SequentialSampler

# Modules and the state of the training loop.


def attached_trainer(module: LightningModule) -> Trainer | None:
    """Return the Trainer of `module`, or None; `module.trainer` would raise an error."""
    return module._trainer


def is_accumulating(trainer: Trainer) -> bool:
    """Return True if the current training batch does not complete an optimizer step."""
    return trainer.fit_loop.epoch_loop._should_accumulate()


def training_epoch_is_done(trainer: Trainer) -> bool:
    """Return True if the current training batch is the last of the epoch or of the training."""
    return trainer.fit_loop.epoch_loop._is_training_done


def time_fetches(trainer: Trainer, before: Callable[[], None], after: Callable[[], None]) -> None:
    """Call a function before and after the training loop waits for a batch, in this training.

    Call this in the hook `on_train_start`. Lightning's profiler gets its calls as before.
    """
    loop: Any = trainer.fit_loop.epoch_loop
    start, stop = type(loop)._on_before_fetch, type(loop)._on_after_fetch

    def on_before_fetch() -> None:
        before()
        start(loop)

    def on_after_fetch() -> None:
        stop(loop)
        after()

    loop._on_before_fetch, loop._on_after_fetch = on_before_fetch, on_after_fetch


def will_validate(trainer: Trainer) -> bool:
    """Return True if Lightning validates after the batch, in the hook `on_train_batch_end`."""
    loop = trainer.fit_loop.epoch_loop
    fetcher: Any = trainer.fit_loop._data_fetcher  # not None as long as training runs
    return not loop._skip_next_val and loop._should_check_val_fx(fetcher)


def is_last_evaluation_batch(trainer: Trainer) -> bool:
    """Return True in the step of the last batch of this rank in a validation, test or prediction.

    False in all steps if a dataset without a length ends before the limit of batches.
    """
    loop: Any = trainer._active_loop
    return bool(loop.batch_progress.is_last_batch)


def can_stop_early(trainer: Trainer) -> bool:
    """Return True if the training has reached `min_epochs` and `min_steps` and so may end now."""
    return trainer.fit_loop._can_stop_early


def clear_restart_flags(trainer: Trainer) -> None:
    """Clear the flags in Lightning's training loops that mark a resumed training.

    The public setter of `FitLoop.restarting` cannot clear it if `max_steps` limits the training.
    """
    trainer.fit_loop._restarting = False
    trainer.fit_loop.epoch_loop.restarting = False


def dump_checkpoint(trainer: Trainer, *, weights_only: bool) -> dict[str, Any]:
    """Return the content of the checkpoint that `trainer.save_checkpoint` would write."""
    return trainer._checkpoint_connector.dump_checkpoint(weights_only)


def set_signal_handlers(trainer: Trainer, handlers: dict[int, Callable[..., None]]) -> None:
    """Let `fit` install other signal handlers than Lightning's, which it restores at its end.

    Call it in the hook `setup`. Lightning's handler for SIGTERM communicates with the other
    processes, and ends the training with exit code 0. It would be active until the first hook of
    the training.
    """
    connector: Any = trainer._signal_connector

    def register() -> None:
        del connector.register_signal_handlers  # a later `validate` has Lightning's handlers
        connector._original_handlers = connector._get_current_signal_handlers()
        for number, handler in handlers.items():
            connector._register_signal(number, handler)

    connector.register_signal_handlers = register


# Division of the examples among ranks.


class _ExactDataConnector(_DataConnector):
    """Connector that divides the rows of an evaluation among the ranks without repetition."""

    # A DataLoader that divides its rows itself keeps its sampler in every stage.
    def _is_divided(self, dataloader: Any) -> bool:
        return hasattr(getattr(dataloader, "batch_sampler", None), "world_size")

    def _requires_distributed_sampler(self, dataloader: Any) -> bool:
        is_divided = self._is_divided(dataloader)
        return not is_divided and super()._requires_distributed_sampler(dataloader)

    def _resolve_sampler(self, dataloader: Any, shuffle: bool, mode: Any = None) -> Any:
        evaluates = mode in (RunningStage.VALIDATING, RunningStage.TESTING)
        is_long_enough = evaluates and len(dataloader.sampler) >= self.trainer.world_size
        if not is_long_enough or not self._requires_distributed_sampler(dataloader):
            return super()._resolve_sampler(dataloader, shuffle, mode)
        options = {**self.trainer.distributed_sampler_kwargs, "shuffle": False}  # type: ignore[dict-item]
        if isinstance(dataloader.sampler, RandomSampler | SequentialSampler):
            return UnrepeatedDistributedSampler(dataloader.dataset, **options)
        return UnrepeatedDistributedSamplerWrapper(dataloader.sampler, **options)

    def _prepare_dataloader(self, dataloader: Any, shuffle: bool, mode: Any) -> Any:
        prepared: Any = super()._prepare_dataloader(dataloader, shuffle, mode)
        sampler = getattr(prepared, "sampler", None)
        is_exact = self._is_divided(prepared) or isinstance(sampler, UnrepeatedDistributedSampler)
        if isinstance(sampler, DistributedSampler):
            is_exact |= sampler.total_size == len(sampler.dataset)  # type: ignore[arg-type]
        if mode != RunningStage.TRAINING and self.trainer.world_size > 1 and not is_exact:
            rank_zero_warn(
                f"the {self.trainer.world_size} devices may count examples of the"
                f" {mode.dataloader_prefix} DataLoader more than once: only a DataLoader with a"
                " dataset that has a length of at least the number of devices, without a"
                " DistributedSampler of its own, is divided exactly"
            )
        return prepared


def divide_evaluation_exactly(trainer: Trainer) -> None:
    """Let the Trainer divide examples among ranks so that an evaluation counts each exactly once.

    Lightning's own sampler repeats examples until all ranks have the same number. With this
    function, ranks may have different numbers of batches. What cannot be divided gives a warning.
    """
    trainer._data_connector.__class__ = _ExactDataConnector


# Logging.


class _StepCountConnector(_LoggerConnector):
    """Connector that logs metrics with the number of completed optimizer steps."""

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        loop = self.trainer.fit_loop.epoch_loop
        index, loop._batches_that_stepped = loop._batches_that_stepped, self.trainer.global_step
        try:
            super().log_metrics(metrics, step)
        finally:
            loop._batches_that_stepped = index


def log_completed_steps(trainer: Trainer) -> None:
    """Let all loggers receive the number of completed optimizer steps as step.

    Lightning's own number is the index of the last step, which is smaller by one.
    """
    trainer._logger_connector.__class__ = _StepCountConnector


def is_logged(trainer: Trainer) -> bool:
    """Return True if the metrics of the current optimizer step are sent to loggers."""
    return bool(trainer.loggers) and trainer._logger_connector.should_update_logs


def log_step_metrics(trainer: Trainer, loggers: Sequence[Any] | None = None) -> None:
    """Send the metrics of the current training batch to the loggers (None: all), if it is logged.

    Lightning does so after the hooks `on_train_batch_end` of all callbacks. That is too late for a
    callback that saves a checkpoint or stops training in this hook. If training goes on, the
    loggers receive the same metrics twice.
    """
    all_loggers = trainer.loggers
    trainer.loggers = list(all_loggers if loggers is None else loggers)
    try:
        trainer._logger_connector.update_train_step_metrics()
    finally:
        trainer.loggers = all_loggers


def take_wandb_run(logger: Any) -> Any | None:
    """Return the W&B run of a `WandbLogger`, if it has started one, and detach the run."""
    run, logger._experiment = logger._experiment, None
    return run


def remove_wandb_init_argument(logger: Any, name: str) -> None:
    """Remove the argument `name` from the arguments that a `WandbLogger` passes to `wandb.init`."""
    logger._wandb_init.pop(name, None)


class EpochProgressBar(RichProgressBar):
    """Lightning's progress bar without a version and the number of epochs, "Epoch 0/-2" for -1."""

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> Any:
        metrics = super().get_metrics(trainer, pl_module)
        metrics.pop("v_num", None)
        return metrics

    def _get_train_description(self, current_epoch: int) -> str:
        return f"Epoch {current_epoch + 1}"


# Strategies and weight averaging.


def set_average_device(callback: Any, target: device) -> None:
    """Set the device of a `WeightAveraging` callback before its `setup`, unless the user has.

    Lightning's default is the device of the model during `setup`, which is the CPU.
    """
    callback._device = callback._device or target


def average_tensors(callback: Any, model: nn.Module) -> AveragedModel:
    """Let a `WeightAveraging` callback average copies of the current tensors of a model.

    The average has the parameters and buffers of the model in their order, but not its modules.
    """
    tensors = nn.ParameterList(model.parameters())
    for number, buffer in enumerate(model.buffers()):
        tensors.register_buffer(f"buffer{number}", buffer)
    average = AveragedModel(tensors, use_buffers=callback._use_buffers, **callback._kwargs)
    callback._average_model = average
    return average


def set_data_parallel_size(strategy: Any, size: int) -> None:
    """Set the number of data-parallel ranks of a `ModelParallelStrategy`.

    Lightning's default, the number of nodes, is set before the number of processes is known.
    """
    strategy._data_parallel_size = size
