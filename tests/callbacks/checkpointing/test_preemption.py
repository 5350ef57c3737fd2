"""Exit codes of stopped processes; tests/commands sends signals to several processes."""

import signal
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.plugins.environments import LightningEnvironment, TorchElasticEnvironment

from fourfold.callbacks.checkpointing import preemption
from fourfold.callbacks.checkpointing.preemption import EXIT_CODE, INTERRUPTED, StopOnSignal

MODULE: Any = SimpleNamespace(loss_normalizer=SimpleNamespace(stop_requested_anywhere=False))


def make_trainer(environment: Any, global_rank: int, local_rank: int) -> Any:
    return SimpleNamespace(
        strategy=SimpleNamespace(cluster_environment=environment()),
        local_rank=local_rank,
        is_global_zero=global_rank == 0,
        global_step=3,
        world_size=1,
    )


@pytest.mark.parametrize(
    ("environment", "ranks", "code"),
    [
        # Two nodes with two processes each; Lightning starts one command per node.
        (LightningEnvironment, (0, 0), EXIT_CODE),
        (LightningEnvironment, (1, 1), 0),
        (LightningEnvironment, (2, 0), EXIT_CODE),
        (TorchElasticEnvironment, (0, 0), EXIT_CODE),
        (TorchElasticEnvironment, (1, 1), 0),
        (TorchElasticEnvironment, (2, 0), 0),
    ],
)
def test_one_process_per_launcher_reports_the_exit_code(
    environment: Any, ranks: tuple[int, int], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preemption, "is_accumulating", lambda trainer: False)
    monkeypatch.setattr(preemption, "validation_follows", lambda trainer: False)
    monkeypatch.setattr(preemption, "is_last_batch_of_run", lambda trainer: False)
    monkeypatch.setattr(preemption, "log_step_metrics", lambda trainer: None)
    callback = StopOnSignal()
    trainer = make_trainer(environment, *ranks)
    callback.on_train_batch_end(trainer, MODULE, None, None, 0)
    callback.signal = signal.SIGTERM
    with pytest.raises(SystemExit) as stopped:
        callback.on_train_batch_end(trainer, MODULE, None, None, 0)
    assert stopped.value.code == code


def test_stop_waits_for_accumulation_and_validation(monkeypatch: pytest.MonkeyPatch) -> None:
    state = {"is_accumulating": True, "validation_follows": True, "is_last_batch_of_run": True}
    for name in state:
        monkeypatch.setattr(preemption, name, lambda trainer, name=name: state[name])
    monkeypatch.setattr(preemption, "log_step_metrics", lambda trainer: None)
    callback = StopOnSignal()
    callback.signal = signal.SIGINT
    trainer = make_trainer(LightningEnvironment, 0, 0)
    for name in state:
        callback.on_train_batch_end(trainer, MODULE, None, None, 0)
        state[name] = False
    with pytest.raises(SystemExit) as stopped:
        callback.on_train_batch_end(trainer, MODULE, None, None, 0)
    assert stopped.value.code == INTERRUPTED
