"""Exit codes of stopped processes; tests/commands sends signals to several processes."""

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning import Callback, Trainer
from lightning.pytorch.plugins.environments import LightningEnvironment, TorchElasticEnvironment

from fourfold.callbacks.checkpointing import preemption
from fourfold.callbacks.checkpointing.exact_resume import ExactResume
from fourfold.callbacks.checkpointing.preemption import EXIT_CODE, SaveOnSignal, StopOnSignal
from fourfold.callbacks.checkpointing.run_checkpoints import RunCheckpoints
from fourfold.checkpoints.files import read_file
from fourfold.data import RecallData
from fourfold.models import CausalLMConfig
from fourfold.tasks import CausalLanguageModeling
from scripts.tools.kill_test import unequal

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
    monkeypatch.setattr(preemption, "is_resumable", lambda trainer, hook: True)
    monkeypatch.setattr(preemption, "is_last_batch_of_run", lambda trainer: False)
    monkeypatch.setattr(preemption, "log_step_metrics", lambda trainer: None)
    callback = StopOnSignal()
    trainer = make_trainer(environment, *ranks)
    callback.on_train_batch_end(trainer, MODULE, None, None, 0)
    callback.signal = signal.SIGTERM
    with pytest.raises(SystemExit) as stopped:
        callback.on_train_batch_end(trainer, MODULE, None, None, 0)
    assert stopped.value.code == code


HOOKS = (
    "on_sanity_check_start",
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_train_batch_end",
    "on_validation_start",
    "on_validation_batch_end",
    "on_validation_end",
    "on_train_epoch_end",
)


class Terminate(Callback):
    """Sends SIGTERM to this process in the hook with a given number."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.n_hooks = 0


def count(self: Terminate, *_: Any) -> None:
    self.n_hooks += 1
    if self.n_hooks == self.at:
        signal.raise_signal(signal.SIGTERM)


for hook in HOOKS:
    setattr(Terminate, hook, count)


def train(folder: Path, at: int, checkpoint: Path | None = None, **options: Any) -> tuple[Any, int]:
    """Train; return the exit code, None at the end of training, and the number of hooks."""
    torch.manual_seed(0)
    config = CausalLMConfig(d_model=8, n_layers=1, n_heads=2, vocab_size=None, dropout=0.1)
    task, data = CausalLanguageModeling(config), RecallData(distance=4, batch_size=4)
    checkpoints = RunCheckpoints(folder, **options.pop("checkpoints", {}))
    terminate = Terminate(at)
    callbacks = [ExactResume(), terminate, checkpoints]
    trainer = Trainer(
        accelerator="cpu",
        callbacks=[*callbacks, SaveOnSignal(checkpoints)],
        limit_train_batches=3,
        limit_val_batches=1,
        num_sanity_val_steps=1,
        use_distributed_sampler=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
        **options,
    )
    try:
        trainer.fit(task, data, ckpt_path=checkpoint)
    except SystemExit as stop:
        return stop.code, terminate.n_hooks
    return None, terminate.n_hooks


def content(folder: Path) -> dict[str, Any]:
    checkpoint = read_file(folder / "last.ckpt")
    del checkpoint["callbacks"]["RunCheckpoints"]  # scores and steps of other files
    return checkpoint


@pytest.mark.filterwarnings("ignore")
def test_training_continues_exactly_after_a_signal_in_the_last_batch_of_an_epoch(
    tmp_path: Path,
) -> None:
    options = {"max_epochs": 2}
    train(tmp_path / "whole", 0, **options)
    for at in (11, 12, 15):  # start and end of the third batch, and of the validation that follows
        run = tmp_path / str(at)
        assert train(run, at, **options) == (EXIT_CODE, 16)
        assert train(run, 0, run / "last.ckpt", **options)[0] is None
        assert unequal(content(tmp_path / "whole"), content(run)) == "", at


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "options",
    [
        {"max_epochs": 2},
        {"max_epochs": -1, "max_steps": 7},
        {"max_epochs": -1, "max_steps": 7, "val_check_interval": 2},
        {"max_epochs": 2, "accumulate_grad_batches": 2, "val_check_interval": 1},
        # The end has a validation: a resume clears the counters of an earlier, complete validation.
        {"max_epochs": 4, "check_val_every_n_epoch": 2, "checkpoints": {"every_n_epochs": 0}},
        {
            "max_epochs": -1,
            "max_steps": 7,
            "checkpoints": {"every_n_epochs": 2, "every_n_steps": 1, "save_top_k": 9},
        },
    ],
    ids=str,
)
def test_training_continues_exactly_after_a_signal_in_any_hook(
    options: dict[str, Any], tmp_path: Path
) -> None:
    code, n_hooks = train(tmp_path / "whole", 0, **options)
    expected = content(tmp_path / "whole")
    assert code is None
    for at in range(1, n_hooks + 1):
        run = tmp_path / str(at)
        code, _ = train(run, at, **options)
        if code is not None:
            assert code == EXIT_CODE
            assert train(run, 0, run / "last.ckpt", **options)[0] is None
        assert unequal(expected, content(run)) == "", at
    for best in (tmp_path / "whole").glob("step=*.ckpt"):
        state = read_file(best)
        if state["callbacks"]["RunCheckpoints"]["mid_accumulation"]:
            continue
        train(tmp_path / "best", 0, best, **options)
        if state["global_step"] < expected["global_step"]:
            assert unequal(expected, content(tmp_path / "best")) == "", best
