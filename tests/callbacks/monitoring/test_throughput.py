from types import SimpleNamespace
from typing import Any

import pytest

from fourfold.callbacks.monitoring.throughput import Reading, StepMetrics


def test_validation_time_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [5.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    trainer: Any = SimpleNamespace(world_size=2, loggers=[], log_every_n_steps=1)
    module: Any = SimpleNamespace(n_units=lambda batch: batch)
    callback = StepMetrics()
    callback.on_train_start(trainer, module)
    callback.on_train_batch_end(trainer, module, None, 50, 0)
    clock[0] = 7.0
    assert callback.read() == (100, 2.0)
    callback.on_validation_start(trainer, module)
    clock[0] = 17.0
    callback.on_validation_end(trainer, module)
    callback.on_train_batch_end(trainer, module, None, 15, 1)
    clock[0] = 18.0
    assert callback.read() == (130, 3.0)
    callback.on_train_start(trainer, module)
    assert callback.read() == (0, 0.0)


def test_rate_between_two_readings() -> None:
    assert Reading(130, 3.0).rate_since(Reading(100, 2.0)) == 30.0
    assert Reading(130, 3.0).rate_since(Reading(130, 3.0)) == 0.0
