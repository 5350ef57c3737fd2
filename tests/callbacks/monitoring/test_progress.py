import io
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lightning import LightningDataModule

from fourfold.callbacks.monitoring.progress import (
    Progress,
    describe_step_size,
)
from fourfold.callbacks.monitoring.throughput import StepMetrics
from fourfold.data.loading.datamodule import BatchedDataset, ResumableDataModule
from fourfold.data.loading.length_bucketing import LengthBucketedOrder


@pytest.mark.parametrize(
    ("devices", "accumulated", "order", "text"),
    [
        (8, 1, LengthBucketedOrder(np.ones(9), max_tokens=25_000), "8 devices x 25,000 tokens"),
        (1, 4, LengthBucketedOrder(np.ones(9), max_rows=512), "4 micro-batches x 512 rows"),
        (
            2,
            3,
            LengthBucketedOrder(np.ones(9), max_rows=5, max_tokens=7),
            "2 devices x 3 micro-batches x 7 tokens",
        ),
    ],
)
def test_describe_step_size(
    devices: int, accumulated: int, order: LengthBucketedOrder, text: str
) -> None:
    class Data(ResumableDataModule):
        def build(self) -> dict[str, BatchedDataset]:
            dataset = BatchedDataset()
            dataset.order = order
            return {"train": dataset}

        def artifacts(self) -> dict[str, Any]:
            return {}

    trainer: Any = SimpleNamespace(
        world_size=devices, accumulate_grad_batches=accumulated, datamodule=Data()
    )
    assert describe_step_size(trainer) == text
    trainer.datamodule = LightningDataModule()
    assert describe_step_size(trainer).endswith(" x 1 batch")


class Output(io.StringIO):
    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


@pytest.mark.parametrize(
    ("is_terminal", "rank", "lines"), [(False, 0, 2), (True, 0, 1), (True, 1, 0)]
)
def test_lines_of_progress_are_left_out_on_a_terminal(
    is_terminal: bool, rank: int, lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Output(is_terminal)
    monkeypatch.setattr(sys, "stdout", out)
    trainer: Any = SimpleNamespace(
        is_global_zero=not rank,
        num_test_batches=[3, 4],
        sanity_checking=False,
        state=SimpleNamespace(fn="fit"),
        global_step=1500,
        callback_metrics={"val/loss": 0.5, "train/loss": 1.0},
    )
    module: Any = None
    callback = Progress(0.0, StepMetrics())
    callback.setup(trainer, module, "test")
    callback.on_validation_end(trainer, module)
    callback.on_test_batch_end(trainer, module, None, None, 2)
    expected = ["step 1,500  val/loss 0.5000", "test batch 3/7"][:lines]
    assert out.getvalue().splitlines() == expected
