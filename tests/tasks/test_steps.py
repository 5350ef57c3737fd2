"""What a task knows of the length of its run."""

import warnings
from dataclasses import replace
from pathlib import Path

import pytest

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


def test_a_training_says_it(texts: Path, tmp_path: Path) -> None:
    task, data = words(texts, max_rows=13)
    late = type(task)(task.config, task.optimizer_config, ScheduleConfig("linear", 5_000))
    with pytest.warns(UserWarning, match="warmup_steps is 5,000, but the run has 2 steps"):
        train(late, data, tmp_path, max_steps=2)
