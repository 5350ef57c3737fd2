import csv
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning import Trainer
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.profilers import PassThroughProfiler

from fourfold.callbacks.monitoring.throughput import Reading, StepMetrics
from tests.fixtures.tiny_tasks import causal


def test_validation_time_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [5.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    loop = _TrainingEpochLoop.__new__(_TrainingEpochLoop)
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    trainer: Any = SimpleNamespace(
        world_size=2,
        loggers=[],
        log_every_n_steps=1,
        strategy=strategy,
        fit_loop=SimpleNamespace(epoch_loop=loop),
    )
    loop.trainer = SimpleNamespace(profiler=PassThroughProfiler())
    module: Any = SimpleNamespace(n_units=lambda batch: batch)
    callback = StepMetrics()
    callback.on_train_start(trainer, module)
    callback.on_train_batch_end(trainer, module, None, 50, 0)
    loop._on_before_fetch()
    clock[0] = 7.0
    loop._on_after_fetch()
    assert callback.read() == (100, 2.0, 2.0)
    callback.on_validation_start(trainer, module)
    clock[0] = 17.0
    callback.on_validation_end(trainer, module)
    callback.on_train_batch_end(trainer, module, None, 15, 1)
    clock[0] = 18.0
    assert callback.read() == (130, 3.0, 2.0)
    assert callback.usage(trainer, Reading(0, 0.0), callback.read()) == {"data_wait": 2 / 3}
    callback.on_train_start(trainer, module)
    assert callback.read() == (0, 0.0, 0.0)


def test_rate_between_two_readings() -> None:
    assert Reading(130, 3.0).rate_since(Reading(100, 2.0)) == 30.0
    assert Reading(130, 3.0).rate_since(Reading(130, 3.0)) == 0.0


def test_share_of_the_time_that_waits_for_data(texts: Path, tmp_path: Path) -> None:
    """Reading a batch takes 40 ms of each step, which takes at least 20 ms more."""
    task, data = causal(texts, max_rows=4)
    data.prepare_data()
    data.setup()
    batches = list(data.train_dataloader())[:4]

    class Slow:
        def __iter__(self) -> Any:
            for batch in batches:
                time.sleep(0.04)
                yield batch

        def __len__(self) -> int:
            return len(batches)

    data.train_dataloader = Slow
    task.on_train_batch_start = lambda *_: time.sleep(0.02)
    logger = CSVLogger(tmp_path)
    callback = StepMetrics()
    Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=logger,
        log_every_n_steps=1,
        callbacks=[callback],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        limit_val_batches=0,
        default_root_dir=tmp_path,
    ).fit(task, data)
    rows = list(csv.DictReader((Path(logger.log_dir) / "metrics.csv").open()))
    shares = [float(row["train/data_wait"]) for row in rows]
    assert len(shares) == 4
    assert all(0.0 < share < 1.0 for share in shares)
    _, seconds, waiting = callback.read()
    # Lightning reads the first batch before the callback starts, or one batch in advance.
    assert 3 * 0.04 <= waiting <= seconds - 4 * 0.02
