"""Callbacks and plugins that a command such as `fit` adds to those of the config."""

import sys
from typing import Any

from lightning import Callback
from lightning.pytorch.callbacks.progress.rich_progress import RichProgressBarTheme
from lightning.pytorch.plugins.environments import (
    ClusterEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
)

from fourfold.callbacks.checkpointing.preemption import SaveOnSignal, StopOnSignal
from fourfold.callbacks.checkpointing.run_checkpoints import RunCheckpoints
from fourfold.callbacks.checkpointing.weight_averaging import (
    CheckpointAveraging,
    ExponentialMovingAverage,
)
from fourfold.callbacks.monitoring.progress import Progress
from fourfold.callbacks.monitoring.run_files import RunFiles
from fourfold.callbacks.monitoring.sample_logging import LogSamples
from fourfold.callbacks.monitoring.throughput import StepMetrics
from fourfold.callbacks.runtime.compile_blocks import CompileBlocks
from fourfold.callbacks.runtime.malloc import DisableMallocTrim
from fourfold.commands.run_directory import RunDirectory
from fourfold.lightning_internals import EpochProgressBar
from fourfold.loggers.metrics_csv import RewindMetricsCSV
from fourfold.loggers.wandb_logger import UploadCheckpoints

BAR_THEME = RichProgressBarTheme(metrics_format=".4g")


def make_callbacks(
    command: str, run: RunDirectory, config: Any, config_text: str
) -> list[Callback]:
    """Return the default callbacks of a command, in the order in which Lightning must call them.

    Args:
        command: fit, validate, test or predict.
        run: Directory of the run.
        config: All options of the command.
        config_text: The options as YAML text, which `fit` writes to config.yaml.
    """
    trainer = config["trainer"]
    writes_files = not trainer["fast_dev_run"]
    step_metrics = StepMetrics()
    output: list[Callback] = [DisableMallocTrim()]
    if trainer["enable_progress_bar"] is not False:
        output.append(Progress(config["log_every_seconds"], step_metrics))
        if sys.stdout.isatty():
            # Showing the loss waits for the device, so not after every batch.
            output.append(EpochProgressBar(refresh_rate=10, theme=BAR_THEME))
    if command == "predict" and writes_files:
        from fourfold.callbacks.monitoring.predictions import PredictionWriter

        output.append(PredictionWriter(run.path))
    if config["log_samples"] and command in ("fit", "test") and writes_files:
        output.append(LogSamples(run.path))
    if command != "fit":
        return output
    callbacks: list[Callback] = [step_metrics]
    if config["compile"]:
        callbacks.append(CompileBlocks())
    if config["auto_micro_batch"]:
        from fourfold.callbacks.runtime.auto_micro_batch import AutoMicroBatch

        callbacks.append(AutoMicroBatch())
    if config["ema_decay"] is not None:
        callbacks.append(ExponentialMovingAverage(config["ema_decay"]))
    if writes_files:
        callbacks += [RewindMetricsCSV(), RunFiles(run.path, config_text)]
        saves_checkpoints = trainer["enable_checkpointing"] is not False
        callbacks += _make_savers(run, config) if saves_checkpoints else [StopOnSignal()]
    return [*callbacks, *output]


def _make_savers(run: RunDirectory, config: Any) -> list[Callback]:
    """Return the callbacks that save, average and upload checkpoints, after all others."""
    checkpoints = RunCheckpoints(run.checkpoints, **vars(config["checkpoint"]))
    savers: list[Callback] = [checkpoints, SaveOnSignal(checkpoints)]
    if n_snapshots := config["average_last_checkpoints"]:
        average = CheckpointAveraging(n_snapshots, config["average_every_n_steps"], run.checkpoints)
        savers.insert(0, average)
    if config["wandb_checkpoints"]:
        savers.append(UploadCheckpoints(run.checkpoints))
    return savers


def as_list(value: Any) -> list[Any]:
    """Return a list unchanged, None as an empty list, and any other value as a list of one item."""
    return value if isinstance(value, list) else [] if value is None else [value]


def slurm_environment(plugins: list[Any]) -> list[Any]:
    """Return a list with Lightning's plugin for SLURM, without automatic requeueing of jobs.

    It is empty without SLURM, with torchrun, and if the user's plugins have such a plugin.
    """
    is_chosen = any(isinstance(plugin, ClusterEnvironment) for plugin in plugins)
    if is_chosen or TorchElasticEnvironment.detect() or not SLURMEnvironment.detect():
        return []
    # Lightning would save in the middle of a batch, from which a run cannot resume exactly.
    return [SLURMEnvironment(auto_requeue=False)]
