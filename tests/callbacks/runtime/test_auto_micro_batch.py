"""Micro-batches after an out-of-memory error: the step of the whole batch, and exact resume."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning import Callback, Trainer
from lightning.pytorch.strategies import DDPStrategy

from fourfold.callbacks.checkpointing.weight_averaging import ExponentialMovingAverage
from fourfold.callbacks.runtime.auto_micro_batch import AutoMicroBatch, is_out_of_memory
from fourfold.errors import InputError
from tests.fixtures.tiny_tasks import TASKS, causal, documents, image_and_text, train

# The pairs of contrastive learning, the documents and the batch norms of two tasks are refused.
REFUSED = ("image and text", "documents", "segmentation")
DIVIDED = [name for name in TASKS if not name.startswith(REFUSED)]


def limit_rows(task: Any, rows: int, backward: bool = False, first: int = 0) -> list[int]:
    """Let steps with more rows raise OutOfMemoryError; return the sizes of all attempts."""
    step, sizes = task.step, list[int]()

    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    def limited(batch: Any) -> Any:
        sizes.append(len(batch[0]))
        total, count = step(batch)
        if len(batch[0]) > rows and task.trainer.global_step >= first:
            total.register_hook(fail) if backward else fail()
        return total, count

    task.step = limited
    return sizes


@pytest.mark.filterwarnings("ignore:out of memory")
@pytest.mark.parametrize(
    ("family", "backward"), [("causal LM", False), *((family, True) for family in DIVIDED)]
)
def test_step_is_that_of_the_whole_batch(
    family: str, backward: bool, texts: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"max_steps": 2, "gradient_clip_val": 0.5}
    whole = train(*TASKS[family](texts, max_rows=40), tmp_path, **options)
    task, data = TASKS[family](texts, max_rows=40)
    sizes = limit_rows(task, 6, backward)
    average, divides = ExponentialMovingAverage(0.9), AutoMicroBatch()
    parts = train(task, data, tmp_path, [average, divides], **options)
    assert divides.n_parts > 1
    assert max(sizes[-2:]) <= 6
    for name, weight in whole.items():
        torch.testing.assert_close(parts[name], weight, rtol=1e-12, atol=1e-12, msg=name)


class SaveAtStep(Callback):
    def __init__(self, file: Path, step: int) -> None:
        self.file, self.step = file, step

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.file)


def with_dropout(texts: Path) -> tuple[Any, Any]:
    task, data = causal(texts, max_rows=8)
    task.config = replace(task.config, dropout=0.1)
    return task, data


@pytest.mark.parametrize("failing_step", [0, 2])
def test_resumed_run_has_the_size_of_the_checkpoint(
    failing_step: int, texts: Path, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"max_steps": 4, "max_epochs": -1}
    file = tmp_path / "three.ckpt"
    task, data = with_dropout(texts)
    sizes = limit_rows(task, 4, first=failing_step)
    with pytest.warns(UserWarning, match=f"out of memory in step {failing_step + 1}: .* of 4 rows"):
        complete = train(task, data, tmp_path, [AutoMicroBatch(), SaveAtStep(file, 3)], **options)
    assert sizes.count(8) == failing_step + 1
    resumed = train(*with_dropout(texts), tmp_path, [AutoMicroBatch()], ckpt_path=file, **options)
    undivided = train(*with_dropout(texts), tmp_path, ckpt_path=file, **options)
    assert all(torch.equal(resumed[name], weight) for name, weight in complete.items())
    assert not all(torch.equal(undivided[name], weight) for name, weight in complete.items())


def test_an_error_with_one_row_or_another_cause_is_raised(texts: Path, tmp_path: Path) -> None:
    task, data = causal(texts, max_rows=8)
    limit_rows(task, 0)
    with pytest.warns(match="out of memory"), pytest.raises(torch.OutOfMemoryError):
        train(task, data, tmp_path, [AutoMicroBatch()], max_steps=1)
    task, data = causal(texts, max_rows=8)
    task.step = lambda batch: torch.zeros(2) @ torch.zeros(3)
    with pytest.raises(RuntimeError, match=r"inconsistent tensor size|size mismatch"):
        train(task, data, tmp_path, [AutoMicroBatch()], max_steps=1)


@pytest.mark.parametrize("make", [documents, image_and_text])
def test_batches_that_cannot_be_divided_are_refused(make: Any, texts: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^--auto_micro_batch must be false: the batches of"):
        train(*make(texts), tmp_path, [AutoMicroBatch()], max_steps=1)


def test_several_devices_and_accumulation_are_refused(texts: Path, tmp_path: Path) -> None:
    ranks: Any = SimpleNamespace(strategy=DDPStrategy())
    with pytest.raises(InputError, match=r"^--auto_micro_batch must be false with several devices"):
        AutoMicroBatch().on_fit_start(ranks, causal(texts)[0])
    with pytest.raises(InputError, match=r"excludes trainer.accumulate_grad_batches above 1$"):
        train(*causal(texts), tmp_path, [AutoMicroBatch()], accumulate_grad_batches=2)


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "MPS backend out of memory (MPS allocated: 8.00 GiB)",
        "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory",
    ],
)
def test_messages_of_older_libraries(text: str) -> None:
    assert is_out_of_memory(RuntimeError(text))
    assert not is_out_of_memory(RuntimeError("shapes do not match"))
