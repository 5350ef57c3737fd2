"""What a checkpoint says of its task, looked at before anything is built from it.

Whoever opens the checkpoint of a stranger, or of another version, is told what is wrong with it.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from fourfold.core.config import check_type, refuse_open
from fourfold.core.errors import InputError
from fourfold.optim import OptimizerConfig
from fourfold.schedules import ScheduleConfig
from fourfold.tasks.plain import from_plain
from fourfold.tasks.tuning import TuningConfig

PARTS = {"task": str, "init_args": dict, "data": dict}
# What the data leave in a checkpoint, where they leave it; a tuple may have become a list.
ARTIFACTS: dict[str, Any] = {
    "tokenizer": str, "class_names": tuple, "max_len": int | None, "separators": int,
    "n_texts": int, "may_be_none": bool, "src_lang": str, "tgt_lang": str, "image_size": int,
    "n_channels": int, "mean": tuple, "std": tuple, "eval_crop": float, "squash": bool,
    "interpolation": str,
}  # fmt: skip
INSIDE = {"class_names": str, "mean": float, "std": float}  # of what these are lists


def check_content(content: Mapping[str, Any]) -> None:
    """Refuse a checkpoint that lacks a part, or holds something else in its place.

    Raises:
        InputError: Names the part.
    """
    saved = content["fourfold"]
    check_type("fourfold", saved, dict)
    for name, kind in PARTS.items():
        check_type(f"fourfold.{name}", saved.get(name), kind)
    state = content.get("state_dict")
    check_type("state_dict", state, dict)
    for name, tensor in (state or {}).items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise InputError(f"{str(name)[:80]} in its state_dict is no tensor")
    for name, value in saved["data"].items():
        if name in ARTIFACTS:
            check_type(f"data.{name}", value, ARTIFACTS[name])
        for item in value if name in INSIDE else ():
            check_type(f"data.{name}", item, INSIDE[name])


def check_training(content: Mapping[str, Any]) -> None:
    """Refuse an optimizer's record that holds something else than numbers.

    Raises:
        InputError: Names what does.
    """
    states = content.get("optimizer_states", [])
    check_type("optimizer_states", states, list)
    for state in states:
        check_type("optimizer_states", state, dict)
        for group in state.get("param_groups") or ():
            for name in ("lr", "initial_lr", "eps", "weight_decay", "momentum"):
                if name in group:
                    check_type(f"optimizer_states.{name}", group[name], float)
        for moments in (state.get("state") or {}).values():
            for name, value in moments.items():
                check_type(f"optimizer_states.{name}", value, Tensor)


def check_arguments(task_class: type[Any], arguments: Mapping[str, Any]) -> None:
    """Refuse arguments that a task cannot be made of.

    Raises:
        InputError: Names the argument.
    """
    sections = {"config": task_class.config_class, "optimizer": OptimizerConfig,
                "schedule": ScheduleConfig, "tuning": TuningConfig}  # fmt: skip
    kinds: dict[str, Any] = {}
    for base in reversed(task_class.__mro__):
        if "__init__" in vars(base):
            parameters = inspect.signature(vars(base)["__init__"]).parameters
            kinds |= {name: parameter.annotation for name, parameter in parameters.items()}
    for name, section in sections.items():
        if name in arguments or name != "tuning":  # which older ones do not have
            refuse_open(from_plain(section, arguments.get(name)))
    for name, value in arguments.items():
        if name not in kinds:
            raise InputError(f"{task_class.__name__} has no {str(name)[:80]!r}")
        if name not in sections:
            check_type(name, value, kinds[name])
