"""Number of optimizer steps, and the warning of a long warm-up."""

import warnings
from pathlib import Path
from typing import Any

import pytest
from lightning import Trainer
from lightning.pytorch.callbacks import Timer

from fourfold.models import CausalLMConfig
from fourfold.schedules import ScheduleConfig
from fourfold.tasks import CausalLanguageModeling
from tests.fixtures.tiny_tasks import SMALL, train, words


@pytest.mark.parametrize("name", ["linear", "cosine", "inverse_sqrt", "noam", "constant"])
def test_warmup_as_long_as_the_training_is_reported(name: str) -> None:
    task: Any = CausalLanguageModeling(CausalLMConfig(**SMALL, vocab_size=9))
    task.configure_model()
    task.trainer = Trainer(logger=False, enable_checkpointing=False)

    def configure(warmup: int, steps: int) -> None:
        task.schedule = ScheduleConfig(name=name, warmup_steps=warmup)
        task.total_steps = lambda: steps
        task.configure_optimizers()

    for steps in (345, 630):
        found = f"warmup_steps is 630, but training has {steps} steps"
        with pytest.warns(UserWarning, match=found):
            configure(630, steps)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        configure(630, 631)
        for warmup in (0, 1):  # none
            configure(warmup, 1)


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
