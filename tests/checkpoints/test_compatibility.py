"""Checks of a checkpoint against the task, the settings and the data that resume from it."""

from typing import Any

import pytest

from fourfold.checkpoints.compatibility import check_same_settings, check_same_task
from fourfold.errors import InputError

TASK = "fourfold.models.causal_lm.task.CausalLanguageModeling"
SAVED: dict[str, Any] = {"task": {"class": TASK}, "data": {"tokenizer": "t", "n_texts": 1}}
SETTINGS: dict[str, Any] = {
    "config": {"n_heads": 2, "dropout": 0.1, "encoder": {"n_heads": 4}},
    "optimizer": {"lr": 0.1, "betas": [0.9, 0.95]},
    "tuning": {"lora_rank": 0, "freeze": 0},
    "init_from": "a.ckpt",
    "label_smoothing": 0.0,
}


def changed(section: str, **values: Any) -> dict[str, Any]:
    return {**SETTINGS, section: {**SETTINGS[section], **values}}


def test_task_and_artifacts_must_be_those_of_the_checkpoint() -> None:
    check_same_task(SAVED, TASK, {"tokenizer": "t", "n_texts": 2})
    check_same_task(SAVED, TASK, {})  # a plain DataModule has no artifacts
    with pytest.raises(InputError, match=rf"--model must be {TASK}, .* got mypkg\.Task"):
        check_same_task(SAVED, "mypkg.Task", {"tokenizer": "t"})
    with pytest.raises(InputError, match="--data gives another tokenizer"):
        check_same_task(SAVED, TASK, {"tokenizer": "other"})
    with pytest.raises(InputError, match="--data gives another class_names"):
        check_same_task(SAVED, TASK, {"tokenizer": "t", "class_names": ["a"]})


@pytest.mark.parametrize(
    ("current", "option"),
    [
        (changed("config", n_heads=4), "model.config.n_heads"),
        (changed("config", encoder={"n_heads": 2}), "model.config.encoder.n_heads"),
        (changed("config", dropout=0.0), "model.config.dropout"),
        (changed("optimizer", lr=0.2), "model.optimizer.lr"),
        ({**SETTINGS, "label_smoothing": 0.1}, "model.label_smoothing"),
    ],
)
def test_changed_settings_are_rejected_in_training(current: dict[str, Any], option: str) -> None:
    with pytest.raises(InputError, match=rf"^{option} must be .*, as in the checkpoint, got "):
        check_same_settings(SETTINGS, current, training=True)


def test_equal_settings_are_accepted() -> None:
    current = changed("optimizer", betas=(0.9, 0.95))  # a file stores lists instead of tuples
    check_same_settings(SETTINGS, {**current, "init_from": None}, training=True)


def test_evaluation_compares_only_the_model() -> None:
    for current in (
        changed("optimizer", lr=0.2),
        changed("config", dropout=0.0),
        changed("tuning", freeze=1),
    ):
        check_same_settings(SETTINGS, current, training=False)
    with pytest.raises(InputError, match=r"model\.tuning\.lora_rank"):
        check_same_settings(SETTINGS, changed("tuning", lora_rank=4), training=False)
