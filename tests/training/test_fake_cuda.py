"""Training and evaluation of all tasks on CUDA tensors without values (see `FakeCuda`).

A tensor on the wrong device raises an error, and waits of the host for the GPU are counted. The
backward pass is not covered.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Callback, Trainer
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorDeviceMismatchError

from fourfold.callbacks.checkpointing.exact_resume import ExactResume
from fourfold.callbacks.monitoring.progress import Progress
from fourfold.callbacks.monitoring.throughput import StepMetrics
from fourfold.models import MaskedLM
from fourfold.optim import OptimizerConfig
from fourfold.tasks import Task
from tests.fixtures.fake_cuda import CUDA, FakeCuda, FakeCudaStrategy
from tests.fixtures.tiny_tasks import TASKS

# Sums of the loss, the targets, the nonfinite losses and the requests to stop.
SUMS = [1.0, 8.0, 0.0, 0.0]
ANSWERS = {
    "HostCopy.__init__": SUMS,
    "GenerationInputs._check_lengths": [5],
    "GenerationInputs.limit": [19],
    "search": [3, 0, 0, 0, 3],  # tokens to generate, no sequence has ended at any token, tokens
}


class Batches:
    """DataLoader of given batches."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class CountWaits(Callback):
    """Callback that stores the waits of the training steps and of the last validation batch.

    It must be the first callback. A step ends with `end_step`, which Lightning calls after all
    callbacks as a method of the task.
    """

    def __init__(self, gpu: FakeCuda) -> None:
        self.gpu = gpu
        self.steps: list[list[str]] = []
        self.events: list[str] = []  # of the last step
        self.in_validation: list[str] = []

    def on_train_batch_start(self, *_: Any) -> None:
        self.gpu.waits.clear()
        self.gpu.events.clear()

    def end_step(self, *_: Any) -> None:
        self.steps.append(list(self.gpu.waits))
        self.events = list(self.gpu.events)

    def on_validation_batch_start(self, *_: Any) -> None:
        self.gpu.waits.clear()

    def on_validation_batch_end(self, *_: Any) -> None:
        self.in_validation = list(self.gpu.waits)

    @property
    def in_step(self) -> list[str]:
        """Waits of a step whose loss `Progress` does not print, as of the first and the last."""
        return min(self.steps, key=len)


def run(task: Task[Any, Any], data: Any, folder: Path) -> CountWaits:
    """Train three steps with AdamW, and validate one batch."""
    data.prepare_data()
    data.setup()
    for split, n_batches in (("train", 3), ("val", 1)):
        first = next(iter(getattr(data, f"{split}_dataloader")()))
        batches = Batches([first] * n_batches)
        setattr(data, f"{split}_dataloader", lambda batches=batches: batches)
    task.optimizer = OptimizerConfig()
    throughput = StepMetrics()
    progress = Progress(math.inf, throughput)
    gpu = FakeCuda(ANSWERS)
    waits = CountWaits(gpu)  # the first callback, so that it also counts the waits of the others
    task.on_train_batch_end = waits.end_step
    strategy = FakeCudaStrategy()
    backward = strategy.backward

    def recorded_backward(loss: Tensor, *rest: Any) -> None:
        gpu.events.append("backward pass")
        backward(loss, *rest)

    strategy.backward = recorded_backward
    trainer = Trainer(
        strategy=strategy,
        max_epochs=1,
        gradient_clip_val=1.0,
        log_every_n_steps=100,
        callbacks=[waits, throughput, ExactResume(), progress],
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        default_root_dir=folder,
    )
    with gpu:
        trainer.fit(task, data)
    assert all(parameter.device == CUDA for parameter in task.parameters())
    return waits


# Functions that copy predictions to the host, since their scores are computed there. All other
# metrics are summed on the GPU.
WAITS_OF_METRICS = {
    "image and text": {"ContrastiveLearning.update_metrics", "RetrievalScores.update"},
    "sequences": {"SequenceClassification.update_metrics"},  # torch.bincount
    "causal classes": {"SequenceClassification.update_metrics"},
    "documents": {"SequenceClassification.update_metrics"},
    "scores": {"RegressionScores.update"},
    "tokens": {"TokenClassification.update_metrics", "TokenClassification._tags"},
    "segmentation": {"SemanticSegmentation.update_metrics"},  # torch.bincount
    "questions": {
        "QuestionAnswering.update_metrics",
        "QuestionAnswering.best_answers.<locals>.<genexpr>",
    },
}
GENERATES = ("translation", "text to text", "joined", "captions", "recurrent captions")


# Tensors without values cannot be packed, as recurrent encoders require.
@pytest.mark.parametrize("name", [name for name in TASKS if name != "recurrent"])
def test_a_training_step_waits_for_its_forward_pass_only(
    name: str, texts: Path, tmp_path: Path
) -> None:
    """The host waits for the sums of the loss, which were copied before the backward pass."""
    options = {"encoder": "block"} if name == "documents" else {}
    waits = run(*TASKS[name](texts, **options), tmp_path)
    assert waits.in_step == []
    assert waits.events == ["record", "backward pass", "synchronize"]
    if name not in GENERATES:
        assert set(waits.in_validation) == WAITS_OF_METRICS.get(name, set())


def test_a_wait_in_the_loss_is_found(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, data = TASKS["causal LM"](texts)
    step = task.step

    def waiting_step(batch: Any) -> Any:
        loss, count = step(batch)
        return loss * bool(loss > -1), count

    monkeypatch.setattr(task, "step", waiting_step)
    assert run(task, data, tmp_path).in_step == ["Task.training_step"]


def test_a_tensor_on_the_wrong_device_is_found(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, data = TASKS["masked LM"](texts)
    encode = MaskedLM.encode

    def encode_with_mask_on_cpu(self: MaskedLM, ids: Tensor, **_: Any) -> Tensor:
        return encode(self, ids, mask=torch.ones(ids.shape, dtype=torch.bool))

    monkeypatch.setattr(MaskedLM, "encode", encode_with_mask_on_cpu)
    with pytest.raises((FakeTensorDeviceMismatchError, RuntimeError), match="same device"):
        run(task, data, tmp_path)
