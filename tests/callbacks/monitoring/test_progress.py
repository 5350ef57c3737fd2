import io
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from lightning import LightningDataModule

from fourfold.callbacks.monitoring.progress import (
    ProgressOutput,
    describe_step_size,
    format_duration,
)
from fourfold.data.loading.batch_order import BatchOrder, LengthBucketedOrder
from fourfold.data.loading.datamodule import BatchedDataset, ResumableDataModule
from fourfold.data.streaming.shuffle_window import ShuffleWindowOrder


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (310, "5 min 10 s"),
        (3600, "1 h 0 min"),
        (12000, "3 h 20 min"),
        (190000, "2 d 4 h"),
    ],
)
def test_format_duration(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


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
        (2, 1, ShuffleWindowOrder(np.ones(9), shuffle_chunks=2, max_rows=4), "2 devices x 4 rows"),
    ],
)
def test_describe_step_size(devices: int, accumulated: int, order: BatchOrder, text: str) -> None:
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


def test_line_output_prints_one_line_per_update(capsys: pytest.CaptureFixture[str]) -> None:
    output = ProgressOutput()
    output.start("train", 12000, 0)
    output.update(1500, {"loss": "2.5", "left": "3 s"})
    output.start("test", 7, 0)
    output.update(3, {})
    output.stop()
    assert capsys.readouterr().out == "step 1,500/12,000  loss 2.5  left 3 s\ntest batch 3/7\n"


def test_bar_output_keeps_printed_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    output = ProgressOutput()
    output.print("before [all]")
    output.start("train", 12000, 0)
    output.update(1500, {"loss": "2.5"})
    output.print("between [all]")
    output.stop()
    output.stop()
    shown = out.getvalue()
    assert "before [all]" in shown
    assert "between [all]" in shown
    assert "1,500/12,000" in shown
    assert "2.5" in shown
