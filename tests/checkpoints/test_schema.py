"""Content of a checkpoint: sections, versions, dataclasses from plain values."""

from dataclasses import asdict
from typing import Any

import pytest
import torch

from fourfold.checkpoints.schema import (
    as_list,
    check_content,
    check_init_args,
    check_version,
    config_from_dict,
    dataclass_from_dict,
    flatten,
    init_annotations,
)
from fourfold.errors import InputError
from fourfold.models import CausalLMConfig, ImageToTextConfig, ViTConfig
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.tasks import Translation


def content() -> dict[str, Any]:
    return {
        "fourfold": {
            "version": 2,
            "model": {"class": "CausalLM", "config": {}},
            "task": {
                "class": "fourfold.models.causal_lm.task.CausalLanguageModeling",
                "init_args": {},
            },
            "data": {"class_names": ["a"], "mean": [0.5]},
        },
        "state_dict": {"model.weight": torch.zeros(1)},
    }


def test_nested_dataclass_is_restored() -> None:
    config = ImageToTextConfig(d_model=24, n_heads=2, encoder=ViTConfig(d_model=12, n_heads=3))
    assert dataclass_from_dict(ImageToTextConfig, asdict(config)) == config


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (7, "OptimizerConfig must be a mapping, got '7'"),
        ({"rate": 1.0}, "rate is not a field of OptimizerConfig"),
        ({"lr": -1.0}, "lr"),
    ],
)
def test_invalid_values_of_a_dataclass_are_rejected(values: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        dataclass_from_dict(OptimizerConfig, values)


def test_config_without_sizes_is_rejected() -> None:
    values = asdict(CausalLMConfig(vocab_size=None))
    with pytest.raises(InputError, match="vocab_size must be given"):
        config_from_dict(CausalLMConfig, values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": None}, "fourfold.model must be of type dict"),
        ({"model": {"class": "CausalLM"}}, r"fourfold\.model\.config must be of type dict"),
        ({"task": {"class": 3, "init_args": {}}}, r"fourfold\.task\.class must be of type str"),
        ({"data": {"mean": ["x"]}}, r"data\.mean must be of type float"),
    ],
)
def test_missing_and_mistyped_sections_are_rejected(change: dict[str, Any], message: str) -> None:
    check_content(content(), "a.ckpt")
    changed = content()
    changed["fourfold"] |= change
    with pytest.raises(InputError, match=rf"^a\.ckpt: .*{message}"):
        check_content(changed, "a.ckpt")


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        (None, "not a checkpoint written by fourfold"),
        ({"task": "Translation"}, "an earlier version"),
        ({"version": 1}, "an earlier version"),
        ({"version": 3}, "a later version"),
    ],
)
def test_other_versions_are_rejected(saved: Any, message: str) -> None:
    with pytest.raises(InputError, match=rf"^a\.ckpt: .*{message}"):
        check_version(saved, "a.ckpt")


def test_arguments_of_a_task_are_checked() -> None:
    init_args = {
        "optimizer": asdict(OptimizerConfig()),
        "schedule": asdict(ScheduleConfig()),
        "tuning": {},
        "num_beams": 3,
    }
    check_init_args(Translation, init_args)
    assert not {"self", "config"} & init_annotations(Translation).keys()
    for change, message in (
        ({"beam": 3}, "beam is not an argument of Translation"),
        ({"num_beams": "three"}, "num_beams must be of type int"),
    ):
        with pytest.raises(InputError, match=message):
            check_init_args(Translation, {**init_args, **change})


def test_nested_mappings_are_flattened() -> None:
    assert flatten({"a": {"b": 1, "c": {"d": 2}}, "e": (3,)}) == {"a.b": 1, "a.c.d": 2, "e": (3,)}
    assert as_list((1, 2)) == [1, 2]
    assert as_list("ab") == "ab"
