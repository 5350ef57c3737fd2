"""Training and evaluation on a device without float64, such as Apple's GPU, which is simulated.

The simulation runs on a CPU and fails if an operation returns a float64 tensor. Nothing here has
run on an Apple GPU.
"""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from fourfold.losses import sum_dtype
from fourfold.metrics.base import BatchSums, stack_for_sum
from tests.fixtures.tiny_tasks import TASKS
from tests.test_lightning_internals import make_trainer

QUICK = ("masked LM", "causal LM", "images")  # those without a search for texts
STEPS = ("training_step", "backward", "optimizer_step", "validation_step", "test_step")


class WithoutFloat64(TorchDispatchMode):
    """Mode in which an operation with a float64 result raises the error of Apple's GPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor) and x.dtype == torch.float64:
                raise TypeError(f"{func} returned float64, which the device does not support")
        return result


@pytest.fixture
def apple(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all steps of tasks run without float64; sums of metrics move to the host, as on MPS."""
    for name, module in list(sys.modules.items()):
        if name.startswith("fourfold.") and hasattr(module, "sum_dtype"):
            monkeypatch.setattr(module, "sum_dtype", lambda device: torch.float32)
    update = BatchSums.update

    def update_on_host(self: BatchSums, *given: Any) -> None:
        stack_for_sum(*given)  # in the mode
        with _disable_current_modes():
            update(self, *given)

    monkeypatch.setattr(BatchSums, "update", update_on_host)


def test_sums_are_float64_except_on_apple_gpus() -> None:
    found = {name: sum_dtype(torch.device(name)) for name in ("cpu", "cuda", "mps")}
    assert found == {"cpu": torch.float64, "cuda": torch.float64, "mps": torch.float32}


@pytest.mark.parametrize(
    "name", [x if x in QUICK else pytest.param(x, marks=pytest.mark.slow) for x in TASKS]
)
def test_no_step_needs_float64(
    name: str, apple: None, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, data = TASKS[name](texts)
    for step in STEPS:
        original = getattr(task, step)

        def without(*args: Any, original: Any = original, **kwargs: Any) -> Any:
            with WithoutFloat64():
                return original(*args, **kwargs)

        monkeypatch.setattr(task, step, without)
    options = {"limit_val_batches": 1, "limit_test_batches": 1}
    trainer = make_trainer(tmp_path, max_epochs=2, max_steps=2, **options)
    trainer.fit(task, data)
    assert trainer.global_step == 2
    found = trainer.test(task, data, verbose=False)[0]
    monkeypatch.undo()  # the metrics equal those of float64
    exact = make_trainer(tmp_path, **options).test(task, data, verbose=False)[0]
    assert found.keys() == exact.keys()
    assert found == pytest.approx(exact, rel=1e-5, abs=1e-6)
