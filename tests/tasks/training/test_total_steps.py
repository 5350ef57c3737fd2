"""What a task knows of the length of its run."""

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from lightning.pytorch.callbacks import Timer

from fourfold.schedules import ScheduleConfig
from fourfold.tasks.steps import warn_of_warm_up
from scripts.tiny_tasks import train, words


@pytest.mark.parametrize("name", ["linear", "cosine", "inverse_sqrt", "noam", "constant"])
def test_a_warm_up_as_long_as_the_run_is_said(name: str) -> None:
    schedule = ScheduleConfig(name=name, warmup_steps=630)
    for steps in (345, 630):
        found = f"warmup_steps is 630, but the run has {steps} steps: its learning rate only grows"
        with pytest.warns(UserWarning, match=found):
            warn_of_warm_up(schedule, steps)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_warm_up(schedule, 631)
        for warmup in (0, 1):  # none
            warn_of_warm_up(replace(schedule, warmup_steps=warmup), 1)


def test_a_run_without_an_end_has_no_number_of_steps(
    texts: Path, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    task, data = words(texts, max_rows=13)
    late = type(task)(task.config, task.optimizer_config, ScheduleConfig("constant", 5_000))
    train(late, data, tmp_path, max_steps=-1, max_epochs=-1, limit_train_batches=2,
          callbacks=[Timer("00:00:00:01")])  # fmt: skip
    assert late.trainer.global_step > 1
    assert late.total_steps() is None
    assert not [w for w in recwarn if "its learning rate only grows" in str(w.message)]


def test_a_training_says_it(texts: Path, tmp_path: Path) -> None:
    task, data = words(texts, max_rows=13)
    late = type(task)(task.config, task.optimizer_config, ScheduleConfig("linear", 5_000))
    with pytest.warns(UserWarning, match="warmup_steps is 5,000, but the run has 2 steps"):
        train(late, data, tmp_path, max_steps=2)
