"""What a command brings along beside the callbacks and plugins that the config asks for."""

from typing import Any

from lightning import Callback
from lightning.pytorch.plugins.environments import (
    ClusterEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
)

from fourfold.callbacks.allocator import KeepFreedMemory
from fourfold.callbacks.averaging import AverageLast
from fourfold.callbacks.checkpoints import Checkpoints
from fourfold.callbacks.compiled import CompileBlocks
from fourfold.callbacks.ema import ExponentialAverage
from fourfold.callbacks.epoch_end import EpochEndResume
from fourfold.callbacks.metrics_csv import RewindMetrics
from fourfold.callbacks.pictures import Pictures
from fourfold.callbacks.predictions import Predictions
from fourfold.callbacks.preemption import Preemption, StopOnSignal
from fourfold.callbacks.progress import Progress
from fourfold.callbacks.replay import KeepForReplay
from fourfold.callbacks.resume import ExactResume
from fourfold.callbacks.run_files import RunFiles
from fourfold.callbacks.step_metrics import StepMetrics
from fourfold.callbacks.uneven import UnevenEvaluation
from fourfold.callbacks.wandb_run import SendCheckpoints
from fourfold.commands.run_directory import RunDirectory


def make_callbacks(command: str, run: RunDirectory, config: Any, text: str) -> list[Callback]:
    """Callbacks of a command, in the order in which they must hear of a batch.

    Args:
        command: fit, validate, test or predict.
        run: Where files go.
        config: All options of the command.
        text: The same as YAML, to be kept.
    """
    trainer = config["trainer"]
    shown: list[Callback] = [KeepFreedMemory()]
    if trainer["enable_progress_bar"] is not False:
        shown.append(Progress(config["progress_seconds"]))
    if command == "predict":
        return [*shown, *([] if trainer["fast_dev_run"] else [Predictions(run.path)])]
    if config["pictures"] and command in ("fit", "test") and not trainer["fast_dev_run"]:
        shown.append(Pictures(run.path))
    if command != "fit":
        return shown
    # First of all the place in the data, which a checkpoint of the same batch must hold.
    mine: list[Callback] = [ExactResume(), EpochEndResume(), StepMetrics(), UnevenEvaluation()]
    if config["compile"]:
        mine.append(CompileBlocks())
    if config["ema_decay"] is not None:
        mine.append(ExponentialAverage(config["ema_decay"]))
    if not trainer["fast_dev_run"]:
        mine += [RewindMetrics(), RunFiles(run.path, text), KeepForReplay(run.path)]
        saves = trainer["enable_checkpointing"] is not False
        mine += _savers(run, config) if saves else [StopOnSignal()]
    return [*mine, *shown]


def _savers(run: RunDirectory, config: Any) -> list[Callback]:
    """What writes checkpoints; Lightning calls these after all others, in this order."""
    checkpoints = Checkpoints(run.checkpoints, **vars(config["checkpoint"]))
    savers: list[Callback] = [checkpoints, Preemption(checkpoints)]
    if config["average_last"]:
        every = config["average_every_n_steps"]
        savers.insert(0, AverageLast(config["average_last"], every, run.checkpoints))
    if config["wandb_checkpoints"]:
        savers.append(SendCheckpoints(run.checkpoints))
    return savers


def as_list(value: Any) -> list[Any]:
    """None, one or many as a list."""
    return [] if value is None else value if isinstance(value, list) else [value]


def scheduler(given: list[Any]) -> list[Any]:
    """SLURM's variables without Lightning's requeueing, which saves in the middle of a batch."""
    if any(isinstance(plugin, ClusterEnvironment) for plugin in given):
        return []
    if TorchElasticEnvironment.detect() or not SLURMEnvironment.detect():
        return []
    return [SLURMEnvironment(auto_requeue=False)]
