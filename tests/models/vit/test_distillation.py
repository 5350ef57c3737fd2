"""Distillation: the losses, the heads, and rejected teachers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from fourfold.cli import main
from fourfold.data.loading.batches import ImageBatch
from fourfold.errors import InputError
from fourfold.losses import distillation_loss
from fourfold.models import ViTConfig
from fourfold.models.vit.task import read_teacher
from fourfold.tasks import ImageClassification, load_task

SHAPE = ViTConfig(
    d_model=16,
    n_layers=1,
    n_heads=2,
    d_ff=16,
    image_size=8,
    patch_size=4,
    n_channels=1,
    n_classes=3,
    distillation=True,
    init="bert",
)


def test_losses_are_those_of_the_paper() -> None:
    ours, theirs = torch.randn(2, 5, 3, dtype=torch.float64)
    hard = distillation_loss(ours, theirs, "hard", 3.0)
    picked = ours.log_softmax(-1)[torch.arange(5), theirs.argmax(-1)]
    torch.testing.assert_close(hard, -picked.sum())
    p, q = (theirs / 3).softmax(-1), (ours / 3).softmax(-1)
    soft = distillation_loss(ours, theirs, "soft", 3.0)
    torch.testing.assert_close(soft, 9 * (p * (p / q).log()).sum())
    torch.testing.assert_close(distillation_loss(ours, ours, "soft", 2.0), torch.zeros_like(soft))
    with pytest.raises(InputError, match="distillation_type must be one of hard, soft, got 'cold'"):
        distillation_loss(ours, theirs, "cold", 1.0)


def batch() -> ImageBatch:
    return ImageBatch(torch.randn(4, 1, 8, 8), torch.tensor([0, 1, 2, 0]), torch.arange(4), 0, 0)


@pytest.mark.parametrize("token", [True, False])
def test_first_head_learns_labels_and_last_head_the_teacher(token: bool) -> None:
    config = ViTConfig(**{**vars(SHAPE), "distillation": token})
    task: Any = ImageClassification(config, teacher_weight=0.25)
    task.configure_model()
    said, given = torch.randn(4, 3), batch()
    task.teacher_model = lambda images: said
    heads = task.head_logits(given.images)
    assert len(heads) == 1 + token
    labels = F.cross_entropy(heads[0], given.labels, reduction="sum")
    taught = F.cross_entropy(heads[-1], said.argmax(-1), reduction="sum")
    loss, count = task.step(given)
    torch.testing.assert_close(loss, 0.75 * labels + 0.25 * taught)
    assert count == 4


def test_accuracy_is_reported_for_each_head() -> None:
    task: Any = ImageClassification(SHAPE)
    task.configure_model()
    given = batch()
    task.update_metrics(given, "test")
    found = task.compute_metrics("test")
    first, last = (
        h.argmax(-1).eq(given.labels).float().mean().item() for h in task.head_logits(given.images)
    )
    assert found["top1_class"] == pytest.approx(first)
    assert found["top1_distillation"] == pytest.approx(last)
    plain: Any = ImageClassification(ViTConfig(**{**vars(SHAPE), "distillation": False}))
    plain.configure_model()
    plain.update_metrics(given, "test")
    assert "top1_class" not in plain.compute_metrics("test")


@pytest.fixture(scope="module")
def teacher(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("teacher") / "run"
    assert main(["fit", "--config", str(root / "configs/vit/tiny.yaml"), *short(run)]) == 0
    return run


def short(run: Path) -> list[str]:
    return [
        "--run_dir",
        str(run),
        "--trainer.max_steps",
        "2",
        "--trainer.max_epochs",
        "-1",
        "--trainer.accelerator",
        "cpu",
        "--trainer.limit_val_batches",
        "1",
        "--tensorboard",
        "false",
    ]


def test_teacher_is_not_part_of_the_checkpoint(root: Path, teacher: Path, tmp_path: Path) -> None:
    config, run = str(root / "configs/deit/tiny.yaml"), tmp_path / "run"
    words = ["--config", config, "--model.teacher", str(teacher), *short(run)]
    before = (teacher / "checkpoints/last.ckpt").read_bytes()
    assert main(["fit", *words]) == 0
    assert (teacher / "checkpoints/last.ckpt").read_bytes() == before
    names = torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    assert not any("teacher" in name for name in names)
    alone = load_task(run / "checkpoints/last.ckpt")  # needs no teacher any more
    assert alone.teacher_model is None


def test_teacher_of_other_classes_or_preprocessing_is_rejected(
    teacher: Path, tmp_path: Path
) -> None:
    artifacts = load_task(teacher / "checkpoints/last.ckpt").artifacts
    taught = read_teacher(str(teacher), artifacts)
    logits = taught(torch.randn(2, 1, 8, 8))
    assert logits.shape == (2, 10)
    assert not logits.requires_grad
    images = torch.randn(2, 1, 8, 8, dtype=torch.bfloat16)  # of a student in bf16-true
    torch.testing.assert_close(taught(images), taught(images.float()))
    # Mean and standard deviation may have been rounded to fp32.
    read_teacher(str(teacher), {**artifacts, "mean": [x + 2e-8 for x in artifacts["mean"]]})
    with pytest.raises(InputError, match=r"mean of the data, \[0\.1\], but .* has \[0\.5\]"):
        read_teacher(str(teacher), {**artifacts, "mean": (0.1,)})
    with pytest.raises(InputError, match="class_names of the data"):
        read_teacher(str(teacher), {**artifacts, "class_names": ["a"]})
    with pytest.raises(InputError, match="there is no checkpoint"):
        read_teacher(str(tmp_path), artifacts)
