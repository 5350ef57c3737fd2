"""A loss that is not finite stops training before the step, and the cause is named."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fourfold.errors import TrainingStopped
from tests.fixtures.tiny_tasks import TASKS, train


def stopped(
    task: Any, data: Any, folder: Path, number: int, change: Callable[[Any], None], **options: Any
) -> str:
    """Train with a change of the model before the batch of that number, and return the message."""
    step = task.training_step

    def training_step(batch: Any, batch_idx: int) -> Any:
        if task.trainer.fit_loop.total_batch_idx == number:
            change(task.model)
        return step(batch, batch_idx)

    task.training_step = training_step
    with pytest.raises(TrainingStopped) as error:
        train(task, data, folder, **options)
    return str(error.value)


@pytest.mark.parametrize(("accumulated", "number", "step"), [(1, 3, 4), (2, 6, 4), (3, 7, 3)])
def test_the_first_batch_of_the_step_with_such_a_loss_is_named(
    accumulated: int, number: int, step: int, texts: Path, tmp_path: Path
) -> None:
    task, data = TASKS["translation"](texts, max_rows=1)

    def change(model: Any) -> None:
        model.encoder.blocks[0].ff.down.weight.data[0] = torch.inf

    message = stopped(task, data, tmp_path, number, change, accumulate_grad_batches=accumulated)
    # With accumulation, later batches of the step are not finite, either; the first is named.
    batch = data.split("train").batch(*next_rows(data, number))
    rows = ", ".join(map(str, batch.rows.tolist()))
    assert message.startswith(f"the loss of step {step} is not a finite number")
    assert message.endswith(
        f"; batch {number + 1} of epoch 1 (rows {rows}): the weights"
        " model.encoder.blocks.0.ff.down.weight are not finite"
    )
    assert task.trainer.global_step == step - 1
    assert "the weights were not changed by this step" in message


def next_rows(data: Any, number: int) -> tuple[Any, int, int]:
    """Return the arguments of `batch` for the batch of that number of the first epoch."""
    batches = list(data.split("train").order.batches(0))
    return batches[number], 0, number


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("translation", "decoder.blocks.0.ff.down"),
        ("causal LM", "stack.blocks.0.ff.down"),
        ("images", "stack.blocks.0.ff.down"),
        ("tokens", "stack.blocks.0.ff.down"),
        ("recurrent", "decoder.cross_attn"),
    ],
)
@pytest.mark.parametrize("precision", ["64-true", "bf16-mixed"])
def test_the_innermost_module_with_such_an_output_is_named(
    name: str, module: str, precision: str, texts: Path, tmp_path: Path
) -> None:
    task, data = TASKS[name](texts)

    def change(model: Any) -> None:
        part = model.get_submodule(module)
        forward = part.forward

        def spoiled(*inputs: Any, **options: Any) -> Any:
            outputs = forward(*inputs, **options)
            first, *others = outputs if isinstance(outputs, tuple) else (outputs,)
            return (first * torch.nan, *others) if others else first * torch.nan

        part.forward = spoiled

    message = stopped(task, data, tmp_path, 0, change, precision=precision)
    assert f": the output of model.{module} is the first with NaN or Inf" in message


def test_a_loss_without_such_an_output_says_so(texts: Path, tmp_path: Path) -> None:
    task, data = TASKS["images"](texts)
    step = task.step
    task.step = lambda batch: (step(batch)[0] * torch.nan, len(batch.images))  # type: ignore[method-assign]
    message = stopped(task, data, tmp_path, -1, lambda model: None)
    assert message.endswith(": the outputs of all modules are finite")
