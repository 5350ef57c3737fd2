"""Number of optimizer steps, and the warning of a long warm-up."""

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from lightning.pytorch.callbacks import Timer

from fourfold.schedules import ScheduleConfig
from fourfold.training.total_steps import warn_if_warmup_never_ends
from tests.fixtures.tiny_tasks import train, words


@pytest.mark.parametrize("name", ["linear", "cosine", "inverse_sqrt", "noam", "constant"])
def test_warmup_as_long_as_the_training_is_reported(name: str) -> None:
    schedule = ScheduleConfig(name=name, warmup_steps=630)
    for steps in (345, 630):
        found = f"warmup_steps is 630, but training has {steps} steps"
        with pytest.warns(UserWarning, match=found):
            warn_if_warmup_never_ends(schedule, steps)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_warmup_never_ends(schedule, 631)
        for warmup in (0, 1):  # none
            warn_if_warmup_never_ends(replace(schedule, warmup_steps=warmup), 1)


def test_training_without_an_end_has_no_number_of_steps(
    texts: Path, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    task, data = words(texts, max_rows=13)
    late = type(task)(task.config, task.optimizer, ScheduleConfig("constant", 5_000))
    train(
        late,
        data,
        tmp_path,
        max_steps=-1,
        max_epochs=-1,
        limit_train_batches=2,
        callbacks=[Timer("00:00:00:01")],
    )
    assert late.trainer.global_step > 1
    assert late.total_steps() is None
    assert not [w for w in recwarn if "learning rate will grow" in str(w.message)]


def test_training_warns_of_a_long_warmup(texts: Path, tmp_path: Path) -> None:
    task, data = words(texts, max_rows=13)
    late = type(task)(task.config, task.optimizer, ScheduleConfig("linear", 5_000))
    with pytest.warns(UserWarning, match="warmup_steps is 5,000, but training has 2 steps"):
        train(late, data, tmp_path, max_steps=2)
