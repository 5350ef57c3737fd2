"""Peaks of GPUs, and FLOPs of a batch compared with FLOPs counted in training."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Callback
from lightning.fabric.utilities.throughput import get_available_flops
from torch.utils.flop_counter import FlopCounterMode

from fourfold.callbacks.monitoring.utilization import flops_share, peak_flops, training_flops
from fourfold.core.attention import attention_backend
from fourfold.finetuning.config import TuningConfig
from tests.fixtures.tiny_tasks import TASKS, train


@pytest.fixture(autouse=True)
def _tf32() -> Any:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    ("name", "bf16", "fp32"),
    [
        ("NVIDIA A100-SXM4-40GB", 312, 156),
        ("NVIDIA A100 80GB PCIe", 312, 156),
        ("NVIDIA H100 80GB HBM3", 989.4, 494.7),
        ("NVIDIA H100 PCIe", 756, 378),
        ("NVIDIA H200", 989.4, 494.7),
        ("NVIDIA L4", 121, 60),
        ("Tesla T4", None, 8.1),
        ("Tesla V100-SXM2-16GB", None, 15.7),
        ("NVIDIA GeForce RTX 3090", 71, 35.6),
        ("NVIDIA GeForce RTX 4090", 165.2, 82.6),
        # Other GPUs, whose names contain those of known ones.
        ("NVIDIA L40S", None, None),
        ("NVIDIA GH200 480GB", None, None),
        ("NVIDIA GeForce RTX 3090 Ti", None, None),
        ("NVIDIA T400", None, None),
    ],
)
def test_peak_of_a_device(name: str, bf16: float | None, fp32: float | None) -> None:
    found = peak_flops(name, "bf16-mixed"), peak_flops(name, "32-true")
    assert found == tuple(None if x is None else x * 1e12 for x in (bf16, fp32))
    assert peak_flops(name, "64-true") is None


def test_tf32_counts_only_if_it_is_allowed() -> None:
    torch.set_float32_matmul_precision("highest")
    assert peak_flops("NVIDIA A100-SXM4-80GB", "32-true") == 19.5e12
    assert peak_flops("NVIDIA A100-SXM4-80GB", "16") == 312e12


@pytest.mark.parametrize(
    "name", ["NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA L4"]
)
def test_peaks_are_those_of_lightning(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    expected = get_available_flops(torch.device("cuda"), torch.bfloat16)
    assert peak_flops(name, "bf16-mixed") == expected


class Note(Callback):
    """Callback that stores the FLOPs of a batch, and those of its forward pass as torch counts."""

    def __init__(self, inputs: Any) -> None:
        self.inputs = inputs

    def on_train_batch_end(self, trainer: Any, task: Any, outputs: Any, batch: Any, _: int) -> None:
        self.found = training_flops(task, batch)
        self.share = flops_share(trainer, task, batch)
        if self.inputs is not None:
            with FlopCounterMode(display=False) as counter, attention_backend("naive"):
                task.model(*self.inputs(batch))
            self.forward = counter.get_total_flops()


@pytest.mark.parametrize(
    ("name", "inputs"),
    [
        ("causal LM", lambda batch: (batch.ids,)),
        ("images", lambda batch: (batch.images,)),
        ("translation", lambda batch: (batch.src, batch.tgt[:, :-1])),
        ("sequences", lambda batch: (batch.ids,)),
        ("image and text", None),
        ("joined", None),
        ("captions", None),
        ("documents", None),
    ],
)
def test_flops_of_a_batch(name: str, inputs: Any, texts: Path, tmp_path: Path) -> None:
    note = Note(inputs)
    train(*TASKS[name](texts), tmp_path, [note], max_steps=1)
    assert note.share == 0.0  # no number for a CPU
    if inputs is not None:
        assert note.found == 3 * note.forward
    elif name == "documents":
        assert note.found is None
    else:
        assert note.found > 0


def test_frozen_layers_have_unknown_flops(texts: Path, tmp_path: Path) -> None:
    task, data = TASKS["causal LM"](texts)
    task.tuning = TuningConfig(lora_rank=2)
    note = Note(None)
    train(task, data, tmp_path, [note], max_steps=1)
    assert note.found is None
