"""Whether a checkpoint is of the task that is to go on with it."""

from collections.abc import Iterable, Mapping
from typing import Any

from lightning.pytorch.callbacks import WeightAveraging

from fourfold.core.errors import InputError
from fourfold.tasks.plain import flat, listed

# Fields of a config that change nothing in evaluation.
UNSEEN = ("dropout", "attn_dropout", "ff_dropout", "drop_path", "head_dropout", "init")


def refuse_another(
    saved: Mapping[str, Any] | None, task: str, artifacts: Mapping[str, Any]
) -> None:
    """Refuse what a checkpoint holds under "fourfold" if it is of another family or other data.

    Raises:
        InputError: Names what differs.
    """
    if saved is None:
        raise InputError("not a checkpoint written by fourfold")
    if saved["task"] != task:
        raise InputError(f"the checkpoint is of {saved['task']}, not {task}")
    for name in ("tokenizer", "class_names"):
        if artifacts.get(name) != saved["data"].get(name):
            raise InputError(f"the checkpoint's {name} is not that of the data given")


def refuse_lost_average(checkpoint: Mapping[str, Any], callbacks: Iterable[Any]) -> None:
    """Refuse to go on from a moving average of weights as if it were the weights.

    Raises:
        InputError: A checkpoint holds both, and no callback is there that knows them apart.
    """
    knows = any(isinstance(callback, WeightAveraging) for callback in callbacks)
    if "current_model_state" in checkpoint and not knows:
        raise InputError("the run averages its weights: give --ema_decay again to go on with it")


def refuse_other_settings(
    saved: Mapping[str, Any], wanted: Mapping[str, Any], *, training: bool
) -> None:
    """Another number of heads fits the same weights, and another optimizer is not asked.

    Args:
        saved: Arguments of the task that wrote the checkpoint.
        wanted: Those of the task that reads it.
        training: Whether it goes on training; evaluation only looks at the model.

    Raises:
        InputError: Names what differs.
    """
    for part in wanted if training else ("config", "tuning"):
        if part == "init_from":
            continue  # the weights have moved on from there
        olds, news = (flat(x) if isinstance(x, dict) else {"": x}
                      for x in (saved.get(part), wanted[part]))  # fmt: skip
        for key, value in news.items():
            name = f"{part}.{key}".rstrip(".")
            seen = part == "config" or key in ("lora_rank", "lora_alpha")
            free = not training and (key.split(".")[-1] in UNSEEN or not seen)
            if key in olds and listed(olds[key]) != listed(value) and not free:
                raise InputError(f"the checkpoint was trained with {name} {olds[key]}, not {value}")
